from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GemmaConfig, GemmaForCausalLM

from tests.interop.parity import changed_config, check_export, check_single_stack, close, ids, randomised
from tests.interop.test_llama import SIZES
from triform.run.pretrained import from_pretrained


def gemma(**changed: Any) -> Any:
    sizes = {**SIZES, "head_dim": 10, **changed}
    theirs = randomised(GemmaForCausalLM(GemmaConfig(**sizes, attn_implementation="eager")))
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
