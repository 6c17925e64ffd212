"""Tasks as a run trains and measures them, on one rank and on two."""

import inspect
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.training import runs
from tests.training.test_gradient import cut

from triform.run.evaluate import evaluate
from triform.run.load import open_run
from triform.run.ranks import launch
from triform.training.saving import read_checkpoint

SENTINELS = 100
TWO = "encoder_decoder"
OF_TEXTS = ("classification", "regression", "multi_label")
DROPPING = (*OF_TEXTS, "token_classification", "image_classification")
"""Tasks with a dropout of their own, which draws other noise for other cuts."""

Gradients = list[dict[str, torch.Tensor]]
"""Of each step, by parameter."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "family"),
    [("span_corruption", "decoder"), ("denoising", "encoder_decoder"), ("prefix_lm", "decoder")],
)
def test_devices_and_micro_batches_only_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, family: str
) -> None:
    """Noise is that of the example, whoever reads it; documents that become rows of their own are no examples."""
    monkeypatch.setitem(runs.FAMILIES, family, (task, "text"))
    expected, _ = cut(tmp_path, family, 1, 1)
    found, _ = cut(tmp_path, family, 2, 3)
    check_gradients(expected, found)


def check_gradients(expected: Gradients, found: Gradients, lonely: bool = False) -> None:
    """Those of each step are equal to rounding.

    Args:
        lonely: a decoder reads one token, so that its queries and keys, under a softmax over one number, have a
            gradient of 0, of which rounding alone is left: it is compared with the largest of all.
    """
    for step, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert a.keys() == b.keys()
        largest = max(float(gradient.abs().max()) for gradient in a.values())
        assert largest > 0
        for name, gradient in a.items():
            scale = max(float(gradient.abs().max()), 0.01 * largest)
            if lonely and name.startswith("model.decoder.") and any(f".attention.{of}_proj." in name for of in "qk"):
                scale = largest
            assert float((gradient - b[name]).abs().max()) / scale < 1e-5, f"step {step}, {name}"


TABLE = [
    *(("causal_lm", "decoder"), ("masked_lm", "encoder")),
    *(
        (task, family)
        for task in ("prefix_lm", "span_corruption", "denoising", "seq2seq")
        for family in ("decoder", TWO)
    ),
    *(
        (task, family)
        for task in ("classification", "regression", "multi_label")
        for family in ("encoder", "decoder", TWO)
    ),
    *(("token_classification", "encoder"), ("token_classification", "decoder"), ("chat", "decoder")),
    ("image_classification", "vit_tiny"),
]
"""Every task with every family that can learn it."""

KINDS = {
    "seq2seq": "pairs",
    "classification": "labelled",
    "regression": "scored",
    "multi_label": "multilabelled",
    "token_classification": "tagged",
    "chat": "chat",
    "image_classification": "images",
}
"""Of data that a task reads; the others read texts."""


def written(folder: Path, kind: str) -> tuple[str, ...]:
    """Overrides for rows of all lengths, so that no two ranks read as many tokens."""
    lines = [" ".join(line.split()) for line in inspect.getsource(textwrap).splitlines() if len(line.split()) > 2][:60]
    file = folder / f"rows.{'conll' if kind == 'tagged' else 'jsonl'}"
    if kind == "images":
        for i in range(60):
            place = folder / "images" / "abc"[i % 3] / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = torch.randint(256, (8, 8), generator=torch.Generator().manual_seed(i))
            Image.fromarray(pixels.to(torch.uint8).numpy()).save(place)
        return (f"data.train_files={folder / 'images'}", "model.max_seq_len=65", "data.seq_len=65")
    if kind == "tagged":
        tag = {0: "O", 1: "B-A", 2: "I-A"}
        sentences = ["".join(f"{word} {tag[len(word) % 3]}\n" for word in line.split()) for line in lines]
        file.write_text("\n".join(sentences))
        return (f"data.train_files={file}",)
    rows: dict[str, Callable[[str], dict[str, Any]]] = {
        "labelled": lambda line: {"text": line, "label": "abc"[len(line) % 3]},
        "scored": lambda line: {"text": line, "score": len(line) / 10},
        "multilabelled": lambda line: {"text": line, "labels": [c for c in "abc" if len(line) % (ord(c) - 95)]},
        "chat": lambda line: {
            "messages": [{"role": "user", "content": line[:3]}, {"role": "assistant", "content": line[3:]}]
        },
    }
    if kind not in rows:
        return ()
    file.write_text("".join(json.dumps(rows[kind](line)) + "\n" for line in lines))
    longer = ("data.seq_len=64", "model.max_seq_len=72") if kind == "chat" else ()
    return (f"data.train_files={file}", *longer)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "family"), TABLE)
def test_two_devices_have_the_gradient_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, family: str
) -> None:
    kind = KINDS.get(task, "text")
    monkeypatch.setitem(runs.FAMILIES, family, (task, kind))
    words = ("trainer.max_steps=3", "scheduler.warmup_steps=1", *written(tmp_path, kind))
    words = (*words, "data.validation_fraction=0.2") if kind not in ("text", "pairs") else words
    words = (*words, "task.dropout=0") if task in DROPPING else words
    expected, _ = cut(tmp_path, family, 1, 1, *words)
    found, _ = cut(tmp_path, family, 2, 1, *words)
    assert len(expected) == 3
    check_gradients(expected, found, task in OF_TEXTS and family == TWO)


@pytest.mark.slow
def test_what_two_ranks_write_is_measured_as_by_one(tmp_path: Path) -> None:
    """BLEU and chrF of the corpus, 5 texts on 2 ranks, each once."""
    run = runs.make(tmp_path, "encoder_decoder", "trainer.devices=2", "task.generate_metrics=validation")
    assert launch(2, runs._rank, (run, False, {})) == 0
    final = json.loads(run.summary.read_text())
    split, alone = evaluate(run.path)
    assert {"bleu", "chrf", "character_error_rate"} <= set(alone)
    assert {f"{split}/{name}": value for name, value in alone.items()} == pytest.approx(final["final"], rel=1e-6)
    assert final["signatures"]["bleu"].startswith("nrefs:1|")


def test_a_model_has_rows_for_the_sentinels_that_its_tokenizer_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runs.FAMILIES, "encoder_decoder", ("span_corruption", "text"))
    run = runs.make(tmp_path, "encoder_decoder")
    assert runs.run(run) == 0
    loaded = open_run(run.path)
    rows = read_checkpoint(run.checkpoints / "best.ckpt")["state_dict"]["model.embedding.table.weight"]
    assert len(rows) == loaded.model.vocab_size == loaded.tokenizer.vocab_size + SENTINELS
    assert loaded.tokenizer.decode(range(loaded.tokenizer.vocab_size, len(rows))) == ""
    _, figures = evaluate(run.path)
    final = json.loads(run.summary.read_text())["final"]
    assert figures["loss"] == pytest.approx(final["validation/loss"], rel=1e-6)
