import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    DistilBertModel,
)

from tests.interop.parity import VOCAB_SIZE, check_export, check_single_stack, close, ids, padded, randomised
from triform.run.build import build
from triform.run.compose import compose
from triform.run.pretrained import from_pretrained, save_pretrained

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "dim": 24,
    "hidden_dim": 40,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 32,
    "attn_implementation": "eager",
}


def made(kind: Any = DistilBertForMaskedLM, **changed: Any) -> Any:
    return randomised(kind(DistilBertConfig(**{**SIZES, **changed})))


@pytest.mark.parametrize(
    "changed",
    [
        {"tie_word_embeddings": False},
        {"activation": "relu"},
        {"activation": "gelu_new", "dropout": 0.3, "attention_dropout": 0.2},
        {"sinusoidal_pos_embds": True},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_masked_language_models_in_and_out(changed: dict[str, Any], tmp_path: Path) -> None:
    theirs = made(**changed)
    ours = check_single_stack(theirs, tmp_path / "theirs")
    config = check_export(ours, DistilBertForMaskedLM, tmp_path / "ours", ids(2, 11))
    assert (config["dropout"], config["attention_dropout"]) == (theirs.config.dropout, theirs.config.attention_dropout)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "n"),
    [(DistilBertModel, 2), (DistilBertForSequenceClassification, 5), (DistilBertForSequenceClassification, 1)],
)
def test_other_heads(kind: Any, n: int, tmp_path: Path) -> None:
    theirs = made(kind, num_labels=n, seq_classif_dropout=0.25)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, _ = from_pretrained(tmp_path / "theirs")
    x, mask = padded("right")
    expected, found = theirs(x, attention_mask=mask.long()), ours(x, mask).logits
    if kind is DistilBertModel:
        close(found[mask], expected.last_hidden_state[mask])
    else:
        close(found[:, 0].reshape(3, n), expected.logits)
        assert ours.head.dropout.p == 0.25
    save_pretrained(ours, tmp_path / "ours")
    again, info = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    close(again.eval()(x, attention_mask=mask.long())[0][0], expected[0][0])


def test_the_preset_is_what_its_name_says(tmp_path: Path) -> None:
    model = build(compose(["model=distilbert_tiny", "model.vocab_size=37"])["model"], (), "model")()
    model.initialise(0)
    config = check_export(model.eval(), DistilBertForMaskedLM, tmp_path / "ours", ids(2, 11))
    assert config["model_type"] == "distilbert"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"activation": "tanh"}, r"activation='tanh' is not supported; supported: "),
        ({"pruned_heads": {"0": [1]}}, r"pruned_heads=.* is not supported"),
    ],
)
def test_what_is_not_supported_is_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    made().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)
