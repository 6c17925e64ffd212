from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
)

from tests.interop.parity import changed_config, check_export, check_single_stack, close, ids, randomised
from tests.interop.test_llama import SIZES
from triform.run.pretrained import from_pretrained

LOCAL, FULL = "sliding_attention", "full_attention"


def gemma(config: type = GemmaConfig, model: type = GemmaForCausalLM, **changed: Any) -> Any:
    sizes = {**SIZES, "head_dim": 10, **changed}
    theirs = randomised(model(config(**sizes, attn_implementation="eager")))
    for name, value in theirs.named_parameters():
        if "norm" in name:
            value.data -= 1  # the gain is 1 + weight
    return theirs


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"num_key_value_heads": 1},
        {"tie_word_embeddings": False},
        {"attention_bias": True, "rms_norm_eps": 1e-3},
        {"hidden_act": "gelu"},
        {"hidden_act": "silu"},
    ],
    ids=lambda changed: "-".join(map(str, changed)) or "usual",
)
def test_gemma_in_and_out(changed: dict[str, Any], tmp_path: Path) -> None:
    ours = check_single_stack(gemma(**changed), tmp_path / "theirs")
    config = check_export(ours, GemmaForCausalLM, tmp_path / "ours", ids(2, 11))
    assert config["architectures"] == ["GemmaForCausalLM"]


@torch.no_grad()
@pytest.mark.parametrize("newer", [{}, {"hidden_activation": "gelu_pytorch_tanh"}], ids=["first", "newer"])
def test_gelu_means_the_approximation(newer: dict[str, str], tmp_path: Path) -> None:
    """As in the first files, and in those with the key that came after them."""
    theirs = gemma()
    theirs.save_pretrained(tmp_path)
    changed_config(tmp_path, hidden_act="gelu", **newer)
    close(from_pretrained(tmp_path)[0](ids(2, 11)).logits, theirs(ids(2, 11)).logits)


@torch.no_grad()
def test_bfloat16(tmp_path: Path) -> None:
    """Embeddings are multiplied by sqrt(d_model) in the model's type: 4.90625 and not 4.898979."""
    theirs = gemma().to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    ours, _ = from_pretrained(tmp_path, dtype=None)
    assert ours.embedding.table.weight.dtype == torch.bfloat16
    embedded = ours.embedding(ids(2, 11))
    assert embedded.dtype == torch.bfloat16
    assert torch.equal(embedded, theirs.model.embed_tokens(ids(2, 11)))
    norm = ours.stack.layers[0].attn_residual.norm
    assert torch.equal(norm(embedded), theirs.model.layers[0].input_layernorm(embedded))


@pytest.mark.parametrize(
    ("key", "value", "supported"),
    [
        ("use_bidirectional_attention", True, "False"),
        ("hidden_activation", "gelu", "'gelu_pytorch_tanh'"),
        ("hidden_act", "relu2", "'silu', 'swish', 'gelu'"),
    ],
)
def test_what_no_part_computes_is_refused(key: str, value: Any, supported: str, tmp_path: Path) -> None:
    gemma().save_pretrained(tmp_path)
    changed_config(tmp_path, **{key: value})
    with pytest.raises(ValueError, match=rf"{key}={value!r} is not supported; supported: {supported}"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("changed", "windows"),
    [
        ({"sliding_window": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}, [3, None, 3]),
        (
            {
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
                "query_pre_attn_scalar": 7,
                "attention_bias": True,
                "sliding_window": 4,
                "layer_types": [LOCAL, LOCAL, FULL],
            },
            [4, 4, None],
        ),
        ({"num_hidden_layers": 1, "sliding_window": 3, "tie_word_embeddings": False}, [3]),
    ],
    ids=["capped", "not-capped", "one-layer"],
)
def test_gemma_2_in_and_out(changed: dict[str, Any], windows: list[int | None], tmp_path: Path) -> None:
    ours = check_single_stack(gemma(Gemma2Config, Gemma2ForCausalLM, **changed), tmp_path / "theirs")
    assert [layer.attention.window for layer in ours.stack.layers] == windows
    config = check_export(ours, Gemma2ForCausalLM, tmp_path / "ours", ids(2, 11))
    assert config["architectures"] == ["Gemma2ForCausalLM"]


def rope(local: dict[str, Any], full: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": {LOCAL: local, FULL: full}}


PLAIN = {"rope_type": "default", "rope_theta": 100.0}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}


@pytest.mark.parametrize(
    ("changed", "windows"),
    [
        ({"layer_types": [LOCAL, LOCAL, FULL], **rope(PLAIN, LINEAR)}, [3, 3, None]),
        ({"layer_types": [LOCAL, FULL, LOCAL], "query_pre_attn_scalar": 7, "attention_bias": True}, [3, None, 3]),
        ({"layer_types": [LOCAL] * 3, **rope(PLAIN, LINEAR)}, [3, 3, 3]),
        ({"layer_types": [FULL] * 3, **rope(PLAIN, LINEAR), "final_logit_softcapping": 3.0}, [None] * 3),
    ],
    ids=["scaled", "usual", "local", "full"],
)
def test_gemma_3_in_and_out(changed: dict[str, Any], windows: list[int | None], tmp_path: Path) -> None:
    theirs = gemma(Gemma3TextConfig, Gemma3ForCausalLM, sliding_window=3, **changed)
    ours = check_single_stack(theirs, tmp_path / "theirs")
    assert [layer.attention.window for layer in ours.stack.layers] == windows
    config = check_export(ours, Gemma3ForCausalLM, tmp_path / "ours", ids(2, 11))
    assert config["architectures"] == ["Gemma3ForCausalLM"]


@torch.no_grad()
def test_gemma_3_as_older_files_have_it(tmp_path: Path) -> None:
    """A pattern instead of a list of layers, and bases beside each other."""
    theirs = gemma(Gemma3TextConfig, Gemma3ForCausalLM, sliding_window=3, layer_types=[LOCAL, FULL, LOCAL])
    theirs.save_pretrained(tmp_path)
    older = {"sliding_window_pattern": 2, "rope_theta": 500.0, "rope_local_base_freq": 50.0, "rope_scaling": None}
    changed_config(tmp_path, layer_types=None, rope_parameters=None, **older)
    again = Gemma3ForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert again.config.rope_parameters[LOCAL]["rope_theta"] == 50.0
    close(from_pretrained(tmp_path)[0](ids(2, 11)).logits, again(ids(2, 11)).logits)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (rope(LINEAR, PLAIN), r"rope_parameters\['sliding_attention'\]=.* is not supported; supported: default"),
        ({"rope_parameters": PLAIN}, r"rope_parameters=.* is not supported; supported: .*'full_attention'"),
        ({"attn_logit_softcapping": 2.0}, r"attn_logit_softcapping=2.0 is not supported; supported: None"),
        ({"use_bidirectional_attention": True}, r"use_bidirectional_attention=True is not supported"),
    ],
)
def test_what_gemma_3_has_no_part_for_is_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    gemma(Gemma3TextConfig, Gemma3ForCausalLM, layer_types=[LOCAL, FULL, LOCAL]).save_pretrained(tmp_path)
    changed_config(tmp_path, **changed)
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)
