import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from tests.interop.parity import VOCAB_SIZE, changed_config, check_export, check_single_stack, close, ids, randomised
from triform.run.pretrained import from_pretrained

SIZES = {"vocab_size": VOCAB_SIZE, "n_positions": 32, "n_embd": 24, "n_layer": 3, "n_head": 4}


def gpt2(**changed: Any) -> Any:
    return randomised(GPT2LMHeadModel(GPT2Config(**{**SIZES, **changed}, attn_implementation="eager")))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"n_inner": 40, "layer_norm_epsilon": 1e-3, "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.3},
        {"activation_function": "gelu"},
        {"activation_function": "gelu_pytorch_tanh"},
        {"activation_function": "relu"},
        {"scale_attn_weights": False},
        {"tie_word_embeddings": False},
        {"reorder_and_upcast_attn": True},
    ],
    ids=lambda changed: "-".join(map(str, changed)) or "usual",
)
def test_gpt2_in_and_out(changed: dict[str, Any], tmp_path: Path) -> None:
    ours = check_single_stack(gpt2(**changed), tmp_path / "theirs")
    config = check_export(ours, GPT2LMHeadModel, tmp_path / "ours", ids(2, 11))
    assert config["architectures"] == ["GPT2LMHeadModel"]
    for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "tie_word_embeddings", "scale_attn_weights"):
        assert config[key] == getattr(GPT2Config(**{**SIZES, **changed}), key), key


@torch.no_grad()
def test_openais_file_has_masks_and_no_prefix(tmp_path: Path) -> None:
    """As the hub's "gpt2" has it."""
    theirs = gpt2()
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    old = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    for layer in range(SIZES["n_layer"]):
        old[f"h.{layer}.attn.bias"] = torch.ones(32, 32).tril().view(1, 1, 32, 32)
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(old, tmp_path / "model.safetensors")
    changed_config(tmp_path, n_ctx=32, task_specific_params={"text-generation": {"do_sample": True}})
    close(from_pretrained(tmp_path)[0](ids(2, 11)).logits, theirs(ids(2, 11)).logits)


@torch.no_grad()
def test_the_bare_model_is_read_under_its_tied_head(tmp_path: Path) -> None:
    theirs = gpt2()
    bare = GPT2Model(theirs.config)
    bare.load_state_dict(theirs.transformer.state_dict())
    bare.save_pretrained(tmp_path)
    close(from_pretrained(tmp_path)[0](ids(2, 11)).logits, theirs(ids(2, 11)).logits)
    changed_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"has no lm_head.weight, which GPT-2 has"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "supported"),
    [
        ("scale_attn_by_inverse_layer_idx", True, "False"),
        ("add_cross_attention", True, "False"),
        ("activation_function", "quick_gelu", "'relu', 'silu', 'swish', 'gelu', 'gelu_new'"),
    ],
)
def test_what_no_part_computes_is_refused(key: str, value: Any, supported: str, tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path)
    changed_config(tmp_path, **{key: value})
    with pytest.raises(ValueError, match=rf"{key}={value!r} is not supported; supported: {supported}"):
        from_pretrained(tmp_path)


def test_one_dropout_rate_stands_for_two(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gpt2(embd_pdrop=0.0).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        ours, _ = from_pretrained(tmp_path)
    assert ours.stack.dropout.p == 0.1
    assert "embd_pdrop=0.0 is not resid_pdrop=0.1" in caplog.text
