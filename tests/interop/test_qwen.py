from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tests.interop.parity import changed_config, check_export, check_single_stack, ids, randomised
from tests.interop.test_llama import SIZES
from triform.run.pretrained import from_pretrained

CLASSES = {"Qwen2": (Qwen2Config, Qwen2ForCausalLM), "Qwen3": (Qwen3Config, Qwen3ForCausalLM)}
WINDOWED = {"use_sliding_window": True, "sliding_window": 3}
LOCAL, FULL = "sliding_attention", "full_attention"


def qwen(name: str, **changed: Any) -> Any:
    config, model = CLASSES[name]
    sizes = SIZES | ({"head_dim": 10} if name == "Qwen3" else {})
    return randomised(model(config(**{**sizes, **changed}, attn_implementation="eager")))


def windows(model: Any) -> list[int | None]:
    return [layer.attention.window for layer in model.stack.layers]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [None] * 3),
        ({"tie_word_embeddings": True, "rms_norm_eps": 1e-3}, [None] * 3),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "sliding_window": 3}, [None] * 3),
        (WINDOWED, [None] * 3),  # max_window_layers is 28
        (WINDOWED | {"max_window_layers": 0}, [3, 3, 3]),
        (WINDOWED | {"max_window_layers": 1}, [None, 3, 3]),
        (WINDOWED | {"layer_types": [LOCAL, LOCAL, FULL]}, [3, 3, None]),
        (WINDOWED | {"layer_types": [FULL, LOCAL, FULL]}, [None, 3, None]),
    ],
    ids=range(8),
)
def test_qwen_in_and_out(name: str, changed: dict[str, Any], expected: list[int | None], tmp_path: Path) -> None:
    ours = check_single_stack(qwen(name, **changed), tmp_path / "theirs")
    assert windows(ours) == expected
    config = check_export(ours, CLASSES[name][1], tmp_path / "ours", ids(2, 11))
    assert config["architectures"] == [f"{name}ForCausalLM"]


def test_qwen3_with_biases(tmp_path: Path) -> None:
    ours = check_single_stack(qwen("Qwen3", attention_bias=True), tmp_path / "theirs")
    assert ours.stack.layers[0].attention.out_proj.bias is not None
    check_export(ours, Qwen3ForCausalLM, tmp_path / "ours", ids(2, 11))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            WINDOWED | {"num_hidden_layers": 4, "layer_types": [FULL, FULL, LOCAL, FULL]},
            r"full attention in layers \[0, 1, 3\] of 4 is not supported; supported: in all, in none, in one, or in",
        ),
        (WINDOWED | {"layer_types": [FULL, FULL, "chunked_attention"]}, r"layer_types with 'chunked_attention' is not"),
        (WINDOWED | {"layer_types": [FULL, FULL]}, r"are 2, but num_hidden_layers=3; fetch it again"),
        ({"layer_types": [FULL, LOCAL, FULL]}, r"there is no sliding_window; set it there"),
    ],
)
def test_an_order_of_layers_that_no_part_has_is_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    qwen("Qwen2").save_pretrained(tmp_path)
    changed_config(tmp_path, **changed)
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)
