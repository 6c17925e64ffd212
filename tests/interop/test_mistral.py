from pathlib import Path
from typing import Any

import pytest
from transformers import MistralConfig, MistralForCausalLM

from tests.interop.parity import changed_config, check_export, check_single_stack, ids, randomised
from tests.interop.test_llama import SIZES
from triform.run.pretrained import from_pretrained


def mistral(**changed: Any) -> Any:
    return randomised(MistralForCausalLM(MistralConfig(**SIZES, **changed, attn_implementation="eager")))


@pytest.mark.parametrize(
    "changed",
    [
        {"sliding_window": 4},
        {"sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"sliding_window": 4096, "head_dim": 10},
        {"sliding_window": 1, "tie_word_embeddings": True},
    ],
    ids=lambda changed: "-".join(f"{key}={value}" for key, value in changed.items() if key == "sliding_window"),
)
def test_mistral_in_and_out(changed: dict[str, Any], tmp_path: Path) -> None:
    ours = check_single_stack(mistral(**changed), tmp_path / "theirs")
    assert {layer.attention.window for layer in ours.stack.layers} == {changed["sliding_window"]}
    config = check_export(ours, MistralForCausalLM, tmp_path / "ours", ids(2, 11))
    # Without a window there is nothing that LLaMA has not.
    if changed["sliding_window"] is None:
        assert config["architectures"] == ["LlamaForCausalLM"]
    else:
        assert (config["architectures"], config["sliding_window"]) == (
            ["MistralForCausalLM"],
            changed["sliding_window"],
        )


def test_a_config_that_says_nothing_of_the_window_has_the_first_versions(tmp_path: Path) -> None:
    mistral(sliding_window=4).save_pretrained(tmp_path)
    changed_config(tmp_path, sliding_window=None)
    assert from_pretrained(tmp_path)[0].stack.layers[0].attention.window == MistralConfig().sliding_window == 4096


def test_layers_of_two_kinds_are_refused(tmp_path: Path) -> None:
    mistral(sliding_window=4).save_pretrained(tmp_path)
    changed_config(tmp_path, layer_types=["full_attention", "sliding_attention", "sliding_attention"])
    with pytest.raises(ValueError, match=r"config.json: layer_types=\[.*\] is not supported; supported: None"):
        from_pretrained(tmp_path)
