"""Tasks as a run trains and measures them, on one rank and on two."""

import json
from pathlib import Path

import pytest
from tests.training import runs
from tests.training.test_gradient import cut

from triform.run.evaluate import evaluate
from triform.run.load import open_run
from triform.run.ranks import launch
from triform.training.saving import read_checkpoint

SENTINELS = 100


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
    for step, (a, b) in enumerate(zip(expected, found, strict=True)):
        largest = max(float(gradient.abs().max()) for gradient in a.values())
        for name, gradient in a.items():
            scale = max(float(gradient.abs().max()), 0.01 * largest)
            assert float((gradient - b[name]).abs().max()) / scale < 1e-5, f"step {step}, {name}"


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
