"""Runs that learn from a stream: resumed bitwise, the same gradient from any devices; what cannot be is refused."""

import gzip
import inspect
import json
import textwrap
from itertools import takewhile
from pathlib import Path

import pytest

from tests.training.runs import SIZES, differences, documents, gradients, make, outcome, run
from triform.data.corpus import BEGINNING
from triform.run.compose import compose
from triform.run.errors import BadInput
from triform.run.folder import RunFolder
from triform.run.job import checked, created, settled
from triform.run.parts import _source

STREAM = ("data.streaming=true", "data.shuffle_mb=0.002", "data.validation_mb=0.0005", "tokenizer=byte")


def compressed(folder: Path) -> str:
    path = folder / "x.txt.gz"
    path.write_bytes(gzip.compress(inspect.getsource(textwrap)[:6000].encode()))
    return f"data.train_files={path}"


def files(folder: Path, kind: str) -> list[str]:
    return {"blocks": [], "lines": [documents(folder)], "parts": [compressed(folder)]}[kind]


@pytest.mark.parametrize(
    ("family", "kind", "more"),
    [
        ("decoder", "blocks", ["data.num_workers=2"]),
        ("encoder", "lines", ["data.packing=true", "data.batch_size=7"]),
        pytest.param("decoder", "parts", ["trainer.devices=2"], marks=pytest.mark.slow),
        pytest.param("decoder", "lines", ["data.packing=true", "data.num_workers=2"], marks=pytest.mark.slow),
        pytest.param("encoder", "parts", ["data.num_workers=1", "data.batch_size=3"], marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed_bitwise(tmp_path: Path, family: str, kind: str, more: list[str]) -> None:
    folders = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        # Where workers are tried, the run that is never stopped has none.
        own = [word for word in more if name == "killed" or "num_workers" not in word]
        folders.append(make(tmp_path / name, family, *STREAM, *files(tmp_path / name, kind), *own))
    assert run(folders[0]) == 0
    assert run(folders[1], kill_at={"micro-batch": 19}) != 0
    assert run(folders[1], resume=True) == 0
    assert not differences(outcome(folders[0]), outcome(folders[1]))


def test_devices_and_micro_batches_only_cut(tmp_path: Path) -> None:
    found = []
    for devices, accumulate in ((1, 1), (2, 3)):
        place = tmp_path / f"{devices}"
        place.mkdir()
        cut = (f"trainer.devices={devices}", f"trainer.accumulate={accumulate}", "model.dropout=0")
        small = ("data.batch_size=5", "trainer.max_steps=18", "optimizer.eps=0.1")
        found.append(gradients(make(place, "decoder", *STREAM, *cut, *small), devices))
    assert len(found[0]) == len(found[1]) == 18
    for a, b in zip(*found, strict=True):
        largest = max(float(gradient.abs().max()) for gradient in a.values())
        for name, gradient in a.items():
            scale = max(float(gradient.abs().max()), 0.01 * largest)
            assert float((gradient - b[name]).abs().max()) / scale < 1e-5, name


@pytest.mark.parametrize(
    ("task", "model"), [("prefix_lm", "decoder"), ("span_corruption", "encoder_decoder"), ("denoising", "decoder")]
)
def test_other_tasks_learn_from_a_stream(tmp_path: Path, task: str, model: str) -> None:
    folder = made(tmp_path, f"model={model}", f"task={task}")
    assert run(folder) == 0
    assert folder.read_summary()["status"] == "finished"
    assert folder.read_summary()["steps"] == 3


def made(folder: Path, *words: str) -> RunFolder:
    (folder / "x.txt").write_text(inspect.getsource(textwrap)[:6000])
    config = settled(
        compose(
            [
                *("model=decoder", "task=causal_lm", "data=text", f"data.train_files={folder / 'x.txt'}"),
                *(*STREAM, "logger=csv", "data.seq_len=32", "data.batch_size=4", *SIZES, "trainer.max_steps=3"),
                *("trainer.val_interval=2", f"paths.outputs={folder / 'outputs'}", *words),
            ]
        )
    )
    return created(config, [], checked(config))


def test_epochs_are_those_of_no_stream(tmp_path: Path) -> None:
    assert made(tmp_path).read_config()["trainer"]["max_epochs"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trainer.max_steps=null"], "trainer.max_epochs=10 alone ends no stream, .*set trainer.max_steps"),
        (["trainer.overfit=true"], "trainer.overfit=true learns one batch"),
        (["tokenizer=char"], "this tokenizer has to read all text before training; choose .* tokenizer=byte"),
        (["data.streaming=maybe"], "data.streaming=maybe is not known; set one of true, false"),
        (["data.shuffle_mb=0"], "data.shuffle_mb=0 is not a number above 0"),
        (["data.validation_mb=-1"], "data.validation_mb=-1 is not a number above 0"),
    ],
)
def test_what_means_nothing_is_refused(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        made(tmp_path, *words)
    assert not (tmp_path / "outputs").exists()


def test_only_running_text_is_streamed(tmp_path: Path) -> None:
    words = ["model=encoder", "data=hub", f"data.path={tmp_path}", "task=classification", "data.streaming=true"]
    with pytest.raises(BadInput, match=r"Hub of kind labelled is prepared before training; set data\.streaming=false"):
        checked(
            settled(compose([*words, "tokenizer=byte", "trainer.max_steps=3", f"paths.outputs={tmp_path}/outputs"]))
        )
    assert not (tmp_path / "outputs").exists()


def test_a_folder_in_the_layout_of_the_hub_is_streamed_by_its_files(tmp_path: Path) -> None:
    texts = [part for part in inspect.getsource(textwrap)[:6000].split("\n\n") if part.strip()]
    for i in range(3):
        (tmp_path / "hub").mkdir(exist_ok=True)
        (tmp_path / "hub" / f"train-{i}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts[i::3]))
    hub = ["data=hub", f"data.path={tmp_path / 'hub'}", "data.data_kind=text"]
    words = ["model=decoder", "task=causal_lm", *hub, *STREAM, "logger=csv", "data.seq_len=32", "data.batch_size=4"]
    words += [*SIZES, "trainer.max_steps=3", f"paths.outputs={tmp_path / 'outputs'}"]
    config = settled(compose(words))
    source = _source(config)[0]
    corpus = source.corpus(2000, 3)
    windows = list(takewhile(lambda window: window.position.epoch == 0, corpus.windows(BEGINNING)))
    found = [passage.text for window in windows for passage in window.read()]
    held = [row["text"] for row in corpus.held_out()]
    assert sorted(found + held) == sorted(texts)
    assert held == texts[0::3][: len(held)]
    assert {window.position.part for window in windows} == {0, 1, 2}
    assert run(created(config, [], checked(config))) == 0
