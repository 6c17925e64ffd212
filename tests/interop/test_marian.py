from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianMTModel

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
from tests.interop.test_bart import SIZES
from tests.models.composed import build
from triform.data.tokenizers import Byte
from triform.run.pretrained import from_pretrained, save_pretrained

TOKENS = {"pad_token_id": 1, "decoder_start_token_id": 1}


def marian(**changed: Any) -> Any:
    model = randomised(MarianMTModel(MarianConfig(**TOKENS | SIZES | changed)))
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data.copy_(stack.embed_positions.create_weight())  # sines, which stay
        if not model.config.tie_word_embeddings:
            stack.embed_tokens.weight.data.copy_(model.model.shared.weight)
    return model


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"scale_embedding": True, "activation_function": "swish"},
        {"activation_function": "relu", "decoder_attention_heads": 4, "decoder_layers": 2, "decoder_ffn_dim": 40},
        {"tie_word_embeddings": False},
        {"d_model": 12, "decoder_attention_heads": 2},
    ],
    ids=str,
)
def test_marian_in_and_out(changed: dict[str, Any], tmp_path: Path) -> None:
    theirs = marian(**changed)
    if changed:
        theirs.final_logits_bias.copy_(torch.linspace(-1, 1, VOCAB_SIZE))
    ours = check_two_stacks(theirs, tmp_path / "theirs")
    assert (ours.head.bias is not None) is bool(changed)
    config = check_export(ours, MarianMTModel, tmp_path / "ours", ids(2, 11), ids(2, 6, seed=2))
    assert config["architectures"] == ["MarianMTModel"]
    names = {"swish": "silu"}
    assert {key: config[key] for key in SIZES | changed} == {
        key: names.get(value, value) for key, value in (SIZES | changed).items()
    }


@torch.no_grad()
def test_as_opus_mt_has_it(tmp_path: Path) -> None:
    """Old keys, copies of the table, stored sines; and as many positions as it has."""
    theirs = marian(scale_embedding=True, activation_function="swish", max_position_embeddings=512)
    expected = check_two_stacks(theirs, tmp_path)
    changed_config(
        tmp_path, add_bias_logits=False, add_final_layer_norm=False, normalize_before=False, normalize_embedding=False,
        static_position_embeddings=True, share_encoder_decoder_embeddings=None, decoder_vocab_size=None,
    )  # fmt: skip
    tensors = load_file(tmp_path / "model.safetensors")
    assert not any("embed_positions" in name for name in tensors)
    for stack in ("encoder", "decoder"):
        tensors[f"model.{stack}.embed_tokens.weight"] = tensors["model.shared.weight"].clone()
        sines = getattr(theirs.model, stack).embed_positions.weight
        tensors[f"model.{stack}.embed_positions.weight"] = sines.detach().clone()
    save_file(tensors, tmp_path / "model.safetensors")
    ours, _ = from_pretrained(tmp_path)
    x, y = ids(1, 512), ids(1, 500, seed=1)
    same_weights(ours, expected)
    close(ours(x, y).logits, theirs(input_ids=x, decoder_input_ids=y).logits)
    assert from_pretrained(tmp_path, max_seq_len=600)[0](ids(1, 600), y).logits.isfinite().all()
    tensors["model.decoder.embed_positions.weight"][7, 5] += 0.1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.decoder.embed_positions.weight holds other numbers than the sines"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"share_encoder_decoder_embeddings": False},
        {"decoder_vocab_size": 99},
        {"normalize_embedding": True},
        {"normalize_before": True},
        {"static_position_embeddings": False},
        {"activation_function": "tanh"},
        {"architectures": ["MarianForCausalLM"]},
    ],
    ids=str,
)
def test_what_marian_has_not(changed: dict[str, Any], tmp_path: Path) -> None:
    marian().save_pretrained(tmp_path)
    changed_config(tmp_path, **changed)
    ((_, value),) = changed.items()
    with pytest.raises(ValueError, match="not supported; supported: ") as refused:
        from_pretrained(tmp_path)
    assert "\n" not in str(refused.value)
    assert str(value[0] if isinstance(value, list) else value) in str(refused.value)


@torch.no_grad()
def test_models_of_ours_are_written_as_marian(tmp_path: Path) -> None:
    tokenizer = Byte().train(iter(()))
    ours = build("marian_tiny", vocab_size=tokenizer.vocab_size)
    save_pretrained(ours, tmp_path, tokenizer)
    theirs = MarianMTModel.from_pretrained(tmp_path).eval()
    close(ours(ids(2, 9), ids(2, 6)).logits, theirs(input_ids=ids(2, 9), decoder_input_ids=ids(2, 6)).logits)
    shifted = theirs.prepare_decoder_input_ids_from_labels(torch.tensor([[11, 12, 3, -100]]))
    assert shifted.tolist() == [[2, 11, 12, 3]]
    assert (theirs.config.pad_token_id, theirs.config.eos_token_id, theirs.config.forced_eos_token_id) == (0, 3, None)
