from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from tests.interop.parity import (
    VOCAB_SIZE,
    changed_config,
    check_export,
    check_two_stacks,
    close,
    ids,
    randomised,
    same_weights,
)
from tests.models.composed import build
from triform.run.pretrained import from_pretrained

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 24,
    "d_kv": 10,  # wider together than d_model
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def t5(own_head: bool, **changed: Any) -> Any:
    """A model of `transformers`, which ties the head of whatever it builds and keeps one that comes from a file."""
    model = randomised(T5ForConditionalGeneration(T5Config(**SIZES | changed)))
    for name, value in model.named_parameters():
        if name.endswith(".q.weight"):
            value.data *= SIZES["d_kv"] ** -0.5  # as T5 begins them: its scores are not divided by it
    if own_head:
        weights = torch.randn(VOCAB_SIZE, 24, generator=torch.Generator().manual_seed(1))
        model.lm_head.weight = nn.Parameter(0.3 * weights)
        model.all_tied_weights_keys.pop("lm_head.weight")
    return model


@pytest.mark.parametrize(
    ("own_head", "changed"),
    [
        (False, {}),
        (True, GATED),
        (False, GATED),
        (True, {}),
        (False, {"num_decoder_layers": None, "layer_norm_epsilon": 1e-3}),
        (False, {"feed_forward_proj": "gelu_new"}),
        (False, {"feed_forward_proj": "gated-silu"}),
    ],
    ids=str,
)
def test_t5_in_and_out(own_head: bool, changed: dict[str, Any], tmp_path: Path) -> None:
    theirs = t5(own_head, **changed)
    ours = check_two_stacks(theirs, tmp_path / "theirs")
    assert hasattr(ours.head, "projection") is own_head
    config = check_export(ours, T5ForConditionalGeneration, tmp_path / "ours", ids(2, 11), ids(2, 6, seed=2))
    assert config["architectures"] == ["T5ForConditionalGeneration"]
    for key, value in SIZES.items():
        assert changed.get(key, value) in (config.get(key), None) or key == "decoder_start_token_id"


@pytest.mark.parametrize("own_head", [False, True])
def test_files_as_transformers_4_wrote_them(own_head: bool, tmp_path: Path) -> None:
    """With copies of the table, a table that nothing reads, and tie_word_embeddings alone to tell 1.1."""
    theirs = t5(own_head, **(GATED if own_head else {}))
    expected = check_two_stacks(theirs, tmp_path)
    changed_config(tmp_path, scale_decoder_outputs=None, tie_word_embeddings=not own_head)
    tensors = load_file(tmp_path / "model.safetensors")
    table = tensors["shared.weight"]
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(8, 4)
    copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] + ([] if own_head else ["lm_head.weight"])
    save_file(tensors | {name: table.clone() for name in copies}, tmp_path / "model.safetensors")
    ours, _ = from_pretrained(tmp_path)
    same_weights(ours, expected)
    tensors["decoder.embed_tokens.weight"] = table + 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"decoder.embed_tokens.weight differs from shared.weight"):
        from_pretrained(tmp_path)


def test_the_table_may_be_stored_under_another_name(tmp_path: Path) -> None:
    expected = check_two_stacks(t5(False), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    ours, _ = from_pretrained(tmp_path)
    same_weights(ours, expected)


@torch.no_grad()
def test_in_several_files_and_of_any_length(tmp_path: Path) -> None:
    theirs = t5(False, relative_attention_num_buckets=32, relative_attention_max_distance=128)
    theirs.save_pretrained(tmp_path, max_shard_size="8KB")
    assert not (tmp_path / "model.safetensors").exists()
    ours, tokenizer = from_pretrained(tmp_path)
    assert (ours.max_seq_len, tokenizer) == (512, None)
    assert from_pretrained(tmp_path, max_seq_len=7)[0].max_seq_len == 7
    longer, _ = from_pretrained(tmp_path, max_seq_len=600)
    x, y = ids(1, 600), ids(1, 580)
    close(longer(x, y).logits, theirs(input_ids=x, decoder_input_ids=y).logits)


@pytest.mark.parametrize(
    "changed",
    [
        {"feed_forward_proj": "gated-tanh"},
        {"feed_forward_proj": "swish"},
        {"dense_act_fn": "gelu"},
        {"is_gated_act": True},
        {"is_encoder_decoder": False},
        {"is_decoder": True},
        {"architectures": ["T5EncoderModel"]},
    ],
    ids=str,
)
def test_what_t5_has_not(changed: dict[str, Any], tmp_path: Path) -> None:
    t5(False).save_pretrained(tmp_path)
    changed_config(tmp_path, **changed)
    ((_, value),) = changed.items()
    with pytest.raises(ValueError, match="not supported; supported: ") as refused:
        from_pretrained(tmp_path)
    assert "\n" not in str(refused.value)
    assert str(value[0] if isinstance(value, list) else value) in str(refused.value)


def test_models_of_ours_are_written_as_t5(tmp_path: Path) -> None:
    for name in ("t5_tiny", "t5_v1_1_tiny"):
        config = check_export(build(name), T5ForConditionalGeneration, tmp_path / name, ids(2, 9), ids(2, 6))
        assert (config["d_kv"], config["n_positions"], config["num_heads"]) == (16, 16, 4)


@pytest.mark.parametrize("changed", [{"num_layers": 0}, {"d_ff": "wide"}, {"dropout_rate": -1}, {"n_positions": 1.5}])
def test_numbers_that_are_none(changed: dict[str, Any], tmp_path: Path) -> None:
    t5(False).save_pretrained(tmp_path)
    changed_config(tmp_path, **changed)
    ((key, value),) = changed.items()
    with pytest.raises(ValueError, match=rf"config.json: {key}={value!r} is no "):
        from_pretrained(tmp_path)
