from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, BartModel

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
from triform.data.tokenizers import Byte
from triform.generation import generate
from triform.layers.layer_drop import LayerDrop
from triform.run.pretrained import from_pretrained, save_pretrained

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "max_position_embeddings": 32,
}


def bart(**changed: Any) -> Any:
    model = randomised(BartForConditionalGeneration(BartConfig(**SIZES | changed)))
    if not model.config.tie_word_embeddings:  # `transformers` then ties the two stacks no more
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_tokens.weight.data.copy_(model.model.shared.weight)
    return model


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"scale_embedding": True},
        {"activation_function": "relu", "decoder_attention_heads": 4, "decoder_layers": 2, "decoder_ffn_dim": 40},
        {"activation_function": "gelu_new"},
        {"tie_word_embeddings": False},
    ],
    ids=str,
)
def test_bart_in_and_out(changed: dict[str, Any], tmp_path: Path) -> None:
    ours = check_two_stacks(bart(**changed), tmp_path / "theirs")
    config = check_export(ours, BartForConditionalGeneration, tmp_path / "ours", ids(2, 11), ids(2, 6, seed=2))
    assert config["architectures"] == ["BartForConditionalGeneration"]
    names = {"gelu_new": "gelu_pytorch_tanh"}  # the same function
    assert {key: config[key] for key in SIZES | changed} == {
        key: names.get(value, value) for key, value in (SIZES | changed).items()
    }


def test_a_bias_of_the_logits(tmp_path: Path) -> None:
    theirs = bart()
    theirs.final_logits_bias.copy_(torch.linspace(-1, 1, VOCAB_SIZE))
    ours = check_two_stacks(theirs, tmp_path / "theirs")
    assert torch.equal(ours.head.bias, theirs.final_logits_bias[0])
    check_export(ours, BartForConditionalGeneration, tmp_path / "ours", ids(2, 11), ids(2, 6, seed=2))


def test_rates_of_training(tmp_path: Path) -> None:
    changed = {"dropout": 0.11, "attention_dropout": 0.12, "activation_dropout": 0.13, "decoder_layerdrop": 0.14}
    bart(**changed).save_pretrained(tmp_path / "theirs")
    ours, _ = from_pretrained(tmp_path / "theirs")
    layer = ours.decoder.layers[0]
    assert layer.cross_residual.dropout.p == ours.encoder.dropout.p == 0.11
    assert (layer.attention.weights_dropout, layer.feed_forward.dropout.p) == (0.12, 0.13)
    rates = [module.rate for module in ours.modules() if isinstance(module, LayerDrop)]
    assert rates == [0, 0, 0.14, 0.14, 0.14]
    config = check_export(ours, BartForConditionalGeneration, tmp_path / "ours", ids(2, 11), ids(2, 6, seed=2))
    assert {key: config[key] for key in changed} == changed


@torch.no_grad()
def test_the_file_of_a_model_without_its_head(tmp_path: Path) -> None:
    """As the published base and large are: `transformers` reads it as a language model too."""
    randomised(BartModel(BartConfig(**SIZES))).save_pretrained(tmp_path)
    changed_config(tmp_path, add_final_layer_norm=False, normalize_before=False, normalize_embedding=True)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "shared.weight" in tensors
    table = tensors["shared.weight"].clone()
    copies = {f"{stack}.embed_tokens.weight": table.clone() for stack in ("encoder", "decoder")}
    save_file(tensors | copies | {"encoder.version": torch.ones(1)}, tmp_path / "model.safetensors")
    theirs = BartForConditionalGeneration.from_pretrained(tmp_path).eval()
    ours, _ = from_pretrained(tmp_path)
    x, y = ids(2, 11), ids(2, 6, seed=2)
    close(ours(x, y).logits, theirs(input_ids=x, decoder_input_ids=y).logits)
    changed_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"tie_word_embeddings=False, but the file of weights has no lm_head.weight"):
        from_pretrained(tmp_path)


def test_a_table_under_the_names_of_the_stacks_alone(tmp_path: Path) -> None:
    bart().save_pretrained(tmp_path)
    before, _ = from_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    table = tensors.pop("model.shared.weight")
    copies = {f"model.{stack}.embed_tokens.weight": table.clone() for stack in ("encoder", "decoder")}
    save_file(tensors | copies, tmp_path / "model.safetensors")
    same_weights(from_pretrained(tmp_path)[0], before)
    copies["model.decoder.embed_tokens.weight"][3, 2] += 1
    save_file(tensors | copies, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"decoder.embed_tokens.weight differs from model.encoder.embed_tokens.weight"):
        from_pretrained(tmp_path)


def test_tables_of_its_own_for_each_stack_are_refused(tmp_path: Path) -> None:
    theirs = bart(tie_word_embeddings=False)
    theirs.model.decoder.embed_tokens.weight.data[3, 2] += 1
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model.decoder.embed_tokens.weight unlike model.shared.weight is not supp"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"add_final_layer_norm": True},
        {"normalize_before": True},
        {"normalize_embedding": False},
        {"static_position_embeddings": True},
        {"extra_pos_embeddings": 0},
        {"is_encoder_decoder": False},
        {"activation_function": "quick_gelu"},
        {"architectures": ["BartForSequenceClassification"]},
    ],
    ids=str,
)
def test_what_bart_has_not(changed: dict[str, Any], tmp_path: Path) -> None:
    bart().save_pretrained(tmp_path)
    changed_config(tmp_path, **changed)
    ((_, value),) = changed.items()
    with pytest.raises(ValueError, match="not supported; supported: ") as refused:
        from_pretrained(tmp_path)
    assert "\n" not in str(refused.value)
    assert str(value[0] if isinstance(value, list) else value) in str(refused.value)


def test_another_length_has_no_positions(tmp_path: Path) -> None:
    bart().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"max_seq_len=64 has no meaning .* learned vector; leave it out .*has 32"):
        from_pretrained(tmp_path, max_seq_len=64)


class TestSpecialTokens:
    """Of our own tokenizer: padding 0, begin 2, end 3."""

    def export(self, name: str, kind: Any, folder: Path) -> tuple[Any, Any]:
        tokenizer = Byte().train(iter(()))
        ours = build(name, vocab_size=tokenizer.vocab_size)
        save_pretrained(ours, folder, tokenizer)
        return ours, kind.from_pretrained(folder).eval()

    def test_labels_are_shifted_behind_the_start(self, tmp_path: Path) -> None:
        _, theirs = self.export("bart_tiny", BartForConditionalGeneration, tmp_path)
        shifted = theirs.prepare_decoder_input_ids_from_labels(torch.tensor([[11, 12, 3, -100]]))
        assert shifted.tolist() == [[2, 11, 12, 3]]

    def test_both_write_the_same(self, tmp_path: Path) -> None:
        ours, theirs = self.export("bart_tiny", BartForConditionalGeneration, tmp_path)
        x = ids(3, 9)
        written: Tensor = theirs.generate(x, max_new_tokens=8, do_sample=False, num_beams=1)
        out = generate(ours, x, max_new_tokens=8, start_id=2, eos_id=3, pad_id=0)
        assert torch.equal(out, written[:, : out.shape[1]])

    def test_without_a_tokenizer_there_are_none(self, tmp_path: Path) -> None:
        save_pretrained(build("bart_tiny"), tmp_path)
        config = BartConfig.from_pretrained(tmp_path)
        assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (None, None, None)
        assert config.forced_eos_token_id is None
