from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
)

from tests.interop.parity import VOCAB_SIZE, check_export, check_single_stack, close, ids, padded, randomised
from triform.run.pretrained import from_pretrained, save_pretrained

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "attn_implementation": "eager",
}
KINDS = {"bert": BertConfig, "roberta": RobertaConfig}


def made(kind: type, **changed: Any) -> Any:
    config = BertConfig if kind.__name__.startswith("Bert") else RobertaConfig
    return randomised(kind(config(**{**SIZES, **changed})))


def rewrite(folder: Path, rename: Any = lambda name: name, **more: torch.Tensor) -> None:
    """The file of weights with other names, and more tensors."""
    tensors = load_file(folder / "model.safetensors")
    save_file({rename(name): value for name, value in tensors.items()} | more, folder / "model.safetensors")


@pytest.mark.parametrize("kind", [BertForMaskedLM, RobertaForMaskedLM])
@pytest.mark.parametrize(
    "changed",
    [
        {"layer_norm_eps": 1e-3},
        {"tie_word_embeddings": False},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "relu"},
        {"type_vocab_size": 3, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3},
        {"pad_token_id": 1, "max_position_embeddings": 17},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_masked_language_models_in_and_out(kind: Any, changed: dict[str, Any], tmp_path: Path) -> None:
    theirs = made(kind, **changed)
    ours = check_single_stack(theirs, tmp_path / "theirs")
    config = check_export(ours, kind, tmp_path / "ours", ids(2, 11))
    assert config["architectures"] == [kind.__name__]
    assert config["hidden_dropout_prob"] == theirs.config.hidden_dropout_prob
    assert config["attention_probs_dropout_prob"] == theirs.config.attention_probs_dropout_prob
    assert config["max_position_embeddings"] == theirs.config.max_position_embeddings


@torch.no_grad()
def test_types_of_tokens(tmp_path: Path) -> None:
    theirs = made(BertForMaskedLM)
    theirs.save_pretrained(tmp_path)
    ours, _ = from_pretrained(tmp_path)
    x, mask = padded("right")
    types = (torch.arange(9) > 2).long().expand(3, 9)
    expected = theirs(x, attention_mask=mask.long(), token_type_ids=types).logits
    close(ours(x, mask, token_type_ids=types).logits[mask], expected[mask])


@torch.no_grad()
def test_pretraining_keeps_both_heads(tmp_path: Path) -> None:
    theirs = made(BertForPreTraining)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, _ = from_pretrained(tmp_path / "theirs")
    expected = theirs(ids(2, 11))
    output = ours(ids(2, 11))
    close(output.logits, expected.prediction_logits)
    close(ours.head.text(output.hidden[:, 0]), expected.seq_relationship_logits)
    save_pretrained(ours, tmp_path / "ours")
    again, info = BertForPreTraining.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    close(again.eval()(ids(2, 11)).seq_relationship_logits, expected.seq_relationship_logits)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@torch.no_grad()
def test_a_file_of_the_hub(tmp_path: Path) -> None:
    """bert-base-uncased: gamma and beta, both heads, a pooler and a copied table beside `BertForMaskedLM`."""
    theirs = made(BertForPreTraining)
    theirs.save_pretrained(tmp_path)
    table = theirs.bert.embeddings.word_embeddings.weight.detach().clone()
    rewrite(
        tmp_path,
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"),
        **{"cls.predictions.decoder.weight": table, "bert.embeddings.position_ids": torch.arange(32)[None]},
    )
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("BertForPreTraining", "BertForMaskedLM"))
    ours, _ = from_pretrained(tmp_path)
    expected = theirs(ids(2, 11))
    close(ours(ids(2, 11)).logits, expected.prediction_logits)
    close(ours.head.text(ours(ids(2, 11)).hidden[:, 0]), expected.seq_relationship_logits)
    rewrite(tmp_path, **{"cls.predictions.decoder.weight": table + 1})
    with pytest.raises(ValueError, match=r"decoder.weight differs from bert.embeddings.word_embeddings.weight"):
        from_pretrained(tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("kind", [BertModel, RobertaModel])
@pytest.mark.parametrize("prefix", [False, True])
def test_models_without_a_head(kind: Any, prefix: bool, tmp_path: Path) -> None:
    theirs = made(kind)
    theirs.save_pretrained(tmp_path / "theirs")
    if prefix:
        rewrite(tmp_path / "theirs", lambda name: f"{theirs.base_model_prefix}.{name}")
    ours, _ = from_pretrained(tmp_path / "theirs")
    x, mask = padded("right")
    expected, output = theirs(x, attention_mask=mask.long()), ours(x, mask)
    close(output.hidden[mask], expected.last_hidden_state[mask])
    close(output.logits[:, 0], expected.pooler_output)
    save_pretrained(ours, tmp_path / "ours")
    again, info = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    close(again.eval()(x, attention_mask=mask.long()).pooler_output, expected.pooler_output)


@torch.no_grad()
@pytest.mark.parametrize("kind", [BertModel, RobertaModel])
def test_models_without_a_pooler(kind: Any, tmp_path: Path) -> None:
    config = BertConfig if kind is BertModel else RobertaConfig
    theirs = randomised(kind(config(**SIZES), add_pooling_layer=False))
    theirs.save_pretrained(tmp_path / "theirs")
    ours, _ = from_pretrained(tmp_path / "theirs")
    close(ours(ids(2, 11)).logits, theirs(ids(2, 11)).last_hidden_state)
    save_pretrained(ours, tmp_path / "ours")
    again, info = kind.from_pretrained(tmp_path / "ours", output_loading_info=True, add_pooling_layer=False)
    assert not any(info.values()), info
    close(again.eval()(ids(2, 11)).last_hidden_state, theirs(ids(2, 11)).last_hidden_state)


@torch.no_grad()
@pytest.mark.parametrize("kind", [BertForSequenceClassification, RobertaForSequenceClassification])
@pytest.mark.parametrize("n", [5, 1])
def test_classifiers(kind: Any, n: int, tmp_path: Path) -> None:
    theirs = made(kind, num_labels=n, classifier_dropout=0.25)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, _ = from_pretrained(tmp_path / "theirs")
    assert ours.head.dropout.p == 0.25
    x, mask = padded("right")
    close(ours(x, mask).logits[:, 0].reshape(3, n), theirs(x, attention_mask=mask.long()).logits)
    save_pretrained(ours, tmp_path / "ours")
    again, info = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    close(again.eval()(x, attention_mask=mask.long()).logits, theirs(x, attention_mask=mask.long()).logits)


@torch.no_grad()
@pytest.mark.parametrize("kind", [RobertaForMaskedLM, RobertaForSequenceClassification, BertForMaskedLM])
@pytest.mark.parametrize("n", [2, 1])
def test_a_pooler_that_nothing_reads_is_kept(kind: Any, n: int, tmp_path: Path) -> None:
    theirs = made(kind, num_labels=n)
    theirs.save_pretrained(tmp_path / "theirs")
    prefix = f"{theirs.base_model_prefix}.pooler.dense"
    weight, bias = torch.randn(24, 24), torch.randn(24)
    rewrite(tmp_path / "theirs", **{f"{prefix}.weight": weight, f"{prefix}.bias": bias})
    ours, _ = from_pretrained(tmp_path / "theirs")
    logits = ours(ids(2, 11)).logits
    close(logits if "Masked" in kind.__name__ else logits[:, 0].reshape(2, n), theirs(ids(2, 11)).logits)
    close(ours.head.text(torch.eye(24)), (weight.T + bias).tanh())
    save_pretrained(ours, tmp_path / "ours")
    assert torch.equal(load_file(tmp_path / "ours" / "model.safetensors")[f"{prefix}.weight"], weight)


def test_roberta_is_written_only_with_a_tokenizer_that_pads_as_it_does(tmp_path: Path) -> None:
    from triform.data.tokenizers import Byte

    tokenizer = Byte().train(iter([]))
    assert tokenizer.pad_id == 0
    sizes = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 20}
    for pad, written in ((0, "RobertaForMaskedLM"), (1, "triform")):
        made(RobertaForMaskedLM, pad_token_id=pad, **sizes).save_pretrained(tmp_path / f"theirs{pad}")
        ours, _ = from_pretrained(tmp_path / f"theirs{pad}")
        assert save_pretrained(ours, tmp_path / f"ours{pad}", tokenizer) == written
        with torch.no_grad():
            close(from_pretrained(tmp_path / f"ours{pad}")[0](ids(2, 11)).logits, ours(ids(2, 11)).logits)


@pytest.mark.parametrize("preset", ["bert_tiny", "roberta_tiny"])
def test_presets_are_what_their_name_says(preset: str, tmp_path: Path) -> None:
    from triform.run.build import build
    from triform.run.compose import compose

    model = build(compose([f"model={preset}", "model.vocab_size=37"])["model"], (), "model")()
    model.initialise(0)
    kind = {"bert_tiny": BertForMaskedLM, "roberta_tiny": RobertaForMaskedLM}[preset]
    config = check_export(model.eval(), kind, tmp_path / "ours", ids(2, 11))
    assert config["model_type"] == preset.removesuffix("_tiny")


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        (BertForMaskedLM, {"hidden_act": "mish"}, r"hidden_act='mish' is not supported; supported: "),
        (BertForMaskedLM, {"is_decoder": True}, r"is_decoder=True is not supported; supported: False"),
        (BertForMaskedLM, {"add_cross_attention": True}, r"add_cross_attention=True is not supported"),
        (
            BertForMaskedLM,
            {"position_embedding_type": "relative_key"},
            r"position_embedding_type='relative_key' is not",
        ),
        (BertForMaskedLM, {"pruned_heads": {"0": [1]}}, r"pruned_heads=.* is not supported"),
        (RobertaForMaskedLM, {"pad_token_id": None}, r"pad_token_id=None, but positions are counted from it"),
    ],
)
def test_what_is_not_supported_is_refused(kind: Any, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    import json

    made(kind).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ValueError, match=message) as error:
        from_pretrained(tmp_path)
    assert "\n" not in str(error.value)


def test_what_has_no_place_is_refused(tmp_path: Path) -> None:
    made(BertModel).save_pretrained(tmp_path)
    rewrite(tmp_path, **{"cls.seq_relationship.weight": torch.zeros(2, 24)})
    with pytest.raises(ValueError, match=r"has cls.seq_relationship.weight, for which BERT as .* has no place"):
        from_pretrained(tmp_path)
