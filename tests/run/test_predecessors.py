"""Runs of the Transformer's predecessors: trained, stopped, matched, exported as any other model."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.composed import PREDECESSORS, build, ids, settings
from tests.training.runs import differences, outcome, run
from triform.analysis.anatomy import memory
from triform.analysis.attention import attention_maps
from triform.analysis.finish import draw_alignment
from triform.models.cost import count_parameters
from triform.models.describe import described
from triform.run.compose import compose
from triform.run.folder import RunFolder, read_mapping
from triform.run.help import conf_dir
from triform.run.job import checked, created, settled
from triform.run.load import open_run
from triform.run.match import matched
from triform.run.parts import own_data, parts
from triform.run.pretrained import OWN_TYPE, from_pretrained, save_pretrained

DATES = ("data.n_train=60", "data.n_validation=9", "data.n_test=7", "data.batch_size=12", "logger=csv")
SMALL = ("model.d_model=16", "model.n_layers=1", "model.d_ff=24", "model.dropout=0.1")
SHORT = ("trainer.max_steps=6", "trainer.val_interval=4", "trainer.save_interval=3", "trainer.log_interval=2")

each = pytest.mark.parametrize("name", PREDECESSORS)


def make(folder: Path, name: str, *words: str) -> RunFolder:
    words = (f"model={name}", *DATES, *SMALL, *SHORT, "trainer.accumulate=2", f"paths.outputs={folder}", *words)
    config = settled(compose(words))
    return created(config, list(words), checked(config))


@pytest.mark.parametrize("name", ["lstm", pytest.param("bytenet", marks=pytest.mark.slow)])
def test_a_killed_run_ends_bitwise_equal(tmp_path: Path, name: str) -> None:
    """Also what it writes at its end is measured; an alignment is drawn where there is one, heads never."""
    whole, killed = make(tmp_path / "whole", name), make(tmp_path / "killed", name)
    assert run(whole) == 0
    assert run(killed, kill_at={"micro-batch": 9}) == -9
    assert run(killed, resume=True) == 0
    assert not differences(outcome(whole), outcome(killed))
    assert math.isfinite(json.loads(whole.summary.read_text())["final"]["test/bleu"])
    loaded = open_run(whole.path)
    example = own_data(whole, loaded.config).splits["test"][0]
    picture = tmp_path / "alignment.png"
    assert draw_alignment(loaded, [example], picture) == picture.is_file() == (name == "lstm")
    with pytest.raises(ValueError, match=r"no attention of several heads to draw; name a run of a Transformer"):
        attention_maps(loaded, "a", None)


def test_blocks_that_are_not_there_cannot_be_computed_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"this model has none; set trainer\.activation_checkpointing=none"):
        make(tmp_path, "lstm", "trainer.activation_checkpointing=block")


@each
@torch.no_grad()
def test_an_export_is_read_again(tmp_path: Path, name: str) -> None:
    model, source, target = build(name), ids(2, 9), ids(2, 5, seed=1)
    node = described(model)
    assert {key: node[key] for key in settings(name) if key != "vocab_size"} == {
        key: value for key, value in settings(name).items() if key != "vocab_size"
    }
    assert save_pretrained(model, tmp_path / "export") == OWN_TYPE
    again, _ = from_pretrained(tmp_path / "export")
    assert torch.equal(again(source, target).logits, model(source, target).logits)
    assert load_file(tmp_path / "export" / "model.safetensors").keys() == dict(model.named_parameters()).keys()


@each
@pytest.mark.parametrize("free", ["d_ff", "d_model", "[n_layers,d_ff]"])
def test_parameters_are_matched(tmp_path: Path, name: str, free: str) -> None:
    words = (f"model={name}", *DATES, *SMALL, f"paths.outputs={tmp_path}", "match=params", "match.to=200000")
    words = (*words, f"match.free={free}", "match.within=0.03")
    config = matched(settled(compose(words)), words)
    with torch.device("meta"):
        n = count_parameters(parts(config, checked(config)).model_factory())
    assert n == config["match"]["result"]["reached"] == pytest.approx(200000, rel=0.03)


@each
@pytest.mark.parametrize("task", ["classification", "denoising"])
def test_other_tasks_of_an_encoder_decoder(tmp_path: Path, name: str, task: str) -> None:
    """A step each, of labelled texts and of running text."""
    lines = [(f"the {word} number {n}", word) for n in range(9) for word in ("big", "small")]
    (tmp_path / "x.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in lines))
    (tmp_path / "x.txt").write_text("".join(f"{text}\n" for text, _ in lines))
    kind, file = {"classification": ("labelled", "x.tsv"), "denoising": ("text", "x.txt")}[task]
    words = (f"data={kind}", f"task={task}", f"model={name}", f"data.train_files={tmp_path / file}", "data.seq_len=16")
    config = settled(compose([*words, *SMALL, "data.batch_size=4", "tokenizer=char", f"paths.outputs={tmp_path}"]))
    made = parts(config, checked(config))
    model: Any = made.model_factory()
    model.initialise(0)
    made.data.total_steps = 1
    made.objective.loss(model, next(iter(made.data.train_dataloader()))).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@each
def test_memory_is_told_from_shapes(name: str) -> None:
    model = build(name).to("meta")
    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer] = lambda m: torch.optim.AdamW(m.parameters())  # noqa: E731
    few, many = (memory(model, optimizer, rows, 8, "32-true") for rows in (1, 3))
    assert few.activations is not None
    assert many.activations == 3 * few.activations
    assert few.weights == 4 * count_parameters(model)


@pytest.mark.parametrize("recipe", ["predecessors_cmudict", "predecessors_multi30k"])
def test_the_studies_compare_equals(tmp_path: Path, recipe: str) -> None:
    """Sizes are about those of the Transformer, under match=params equal, and under match=seconds nothing else ends."""
    pairs = [tmp_path / name for name in ("a.txt", "b.txt")]
    for path in pairs:
        path.write_text("".join(f"{n} word{n % 7} of {path.stem}\n" for n in range(90)))
    counts: dict[str, float] = {}
    for name in ("encoder_decoder", *PREDECESSORS):
        words = [f"experiment={recipe}", f"model={name}", f"data.train_files=[{pairs[0]},{pairs[1]}]", "seed=1"]
        words += ["tokenizer.vocab_size=280"] if "multi30k" in recipe else []
        words += [f"paths.outputs={tmp_path}", "logger=csv"]
        plain = settled(compose(words))
        with torch.device("meta"):
            counts[name] = count_parameters(parts(plain, checked(plain)).model_factory())
        params, seconds = (
            matched({**plain, "match": read_mapping(conf_dir() / "match" / f"{by}.yaml") | {"to": to}}, words)
            for by, to in (("params", 1e6), ("seconds", 600))
        )
        assert params["match"]["result"]["reached"] == pytest.approx(1e6, rel=0.01)
        assert seconds["trainer"]["max_hours"] == pytest.approx(1 / 6)
        assert seconds["trainer"]["max_steps"] is None
    assert max(counts.values()) < 1.06 * min(counts.values())
