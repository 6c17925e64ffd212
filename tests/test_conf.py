"""Every file under conf/ composes, builds and takes a training step; every key says what it means."""

import json
import math
import re
from itertools import zip_longest
from pathlib import Path

import pytest
import torch
from PIL import Image

from triform.data.tokenizers import Byte
from triform.run.compose import compose
from triform.run.folder import RunFolder
from triform.run.help import conf_dir, groups
from triform.run.job import checked, created, rank_main, settled
from triform.run.parts import loggers, own_data, parts
from triform.run.ranks import start_all
from triform.training.saving import read_checkpoint

TINY = ["model.d_model=16", "model.n_heads=2", "model.n_layers=1", "model.d_ff=24", "data.batch_size=3", "logger=csv"]
DATES = ["data.n_train=40", "data.n_validation=5", "data.n_test=5"]
OWN_FILES = {
    "text": ["data.train_files={}/a.txt", "data.seq_len=12"],
    "pairs": ["data.train_files=[{0}/a.en,{0}/a.de]", "data.seq_len=12"],
    "labelled": ["data.train_files={}/x.tsv", "data.seq_len=12"],
    "multilabelled": ["data.train_files={}/m.jsonl", "data.seq_len=12"],
    "scored": ["data.train_files={}/s.csv", "data.seq_len=12"],
    "tagged": ["data.train_files={}/t.conll", "data.seq_len=12"],
    "chat": ["data.train_files={}/c.jsonl", "data.seq_len=64"],
    "hub": ["data.path={}/hub", "data.seq_len=12"],
    "images": ["data.train_files={}/images"],
    "mixture": [
        *("+data@data.sources.a=text", "data.sources.a.train_files={}/a.txt"),
        *("+data@data.sources.b=text", "data.sources.b.train_files={}/a.de", "data.seq_len=12"),
    ],
}
RECIPE_FOR = {
    ("experiment", "none"): "dates",
    ("model", "encoder"): "labelled",
    ("model", "decoder"): "text",
    ("task", "causal_lm"): "text",
    ("task", "masked_lm"): "text",
    ("task", "prefix_lm"): "text",
    ("task", "span_corruption"): "text",
    ("task", "denoising"): "text",
    ("task", "classification"): "labelled",
    ("task", "multi_label"): "multilabelled",
    ("task", "regression"): "scored",
    ("task", "token_classification"): "tagged",
    ("task", "chat"): "chat",
    ("task", "image_classification"): "digits",
    ("model", "vit_tiny"): "digits",
}
GROUPED = ("llama", "mistral", "qwen", "gemma")
"""Models that name their key/value heads, which must divide the tiny number of query heads."""
HEADLESS = ("lstm", "gnmt", "bytenet", "convs2s")
"""Models without attention heads."""
ENCODERS = [name for name in groups()["model"] if name.startswith(("bert", "roberta", "distilbert", "modernbert"))]
UNTRAINED = {
    *(("model/embedding", option) for option in groups()["model/embedding"]),
    ("model", "vit_base"),
    ("model", "from_pretrained"),
    *(("model/head", name) for name in groups()["model/head"] if not name.startswith(("language", "masked", "pre"))),
}
"""What no data of a test is for: large images, heads that a task brings or that have no loss, folders of the user."""
IMAGES = ("digits", "images")
CHOICES = [
    (group, option) for group, options in groups().items() for option in options if (group, option) not in UNTRAINED
]
SLOW = (("data", "stdlib"), ("data", "stdlib_docs"), ("experiment", "stdlib"), ("experiment", "stdlib_docs"))
"""Tokenising all of Python's standard library takes long; `stdlib_modules`, a part of it, is in every test run."""
CASES = [
    pytest.param(group, option, id=f"{group}={option}", marks=[pytest.mark.slow] * ((group, option) in SLOW))
    for group, option in CHOICES
]
TRAINED = [
    *([f"optimizer={option}"] for option in groups()["optimizer"]),
    *(
        [f"scheduler={scheduler or 'noam'}", other or "debug=none"]
        for scheduler, other in zip_longest(
            groups()["scheduler"],
            [f"{group}={option}" for group in ("trainer", "debug", "callbacks") for option in groups()[group]],
        )
    ),
]
"""Options that the Trainer, too, has to do with: each in one run, two at a time where they don't touch."""
ONE = ["trainer.accelerator=cpu", "trainer.devices=1", "trainer.tensor_parallel=1"]
"""What any machine has, whatever a file of `trainer` asks for; `tests/training` has the strategies on several ranks."""


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small files of every kind, and the cache of what was prepared from them."""
    folder = tmp_path_factory.mktemp("files")
    lines = [f"the {word} number {n} is here\n" for n in range(20) for word in ("big", "small", "odd")]
    (folder / "a.txt").write_text("".join(lines))
    (folder / "a.en").write_text("".join(lines))
    (folder / "a.de").write_text("".join(line.upper() for line in lines))
    (folder / "x.tsv").write_text("text\tlabel\n" + "".join(f"{line[:-1]}\t{line.split()[1]}\n" for line in lines))
    (folder / "hub").mkdir()
    (folder / "hub" / "train.csv").write_text("text,label\n" + "".join(f"{s[:-1]},{s.split()[1]}\n" for s in lines))
    (folder / "s.csv").write_text("text,score\n" + "".join(f"{line[:-1]},{len(line)}\n" for line in lines))
    (folder / "t.conll").write_text("\n".join("".join(f"{w} {w[0]}\n" for w in line.split()) for line in lines))
    rows = [{"text": line, "labels": [*line.split()[1:2], "all"]} for line in lines]
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    turns = [[{"role": "user", "content": line}, {"role": "assistant", "content": line.upper()}] for line in lines]
    (folder / "c.jsonl").write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    Byte().train(iter(())).save(folder / "tokenizer")
    for i in range(12):
        path = folder / "images" / f"class{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 40), (20 * i, 0, 0)).save(path)
    return folder


def overrides_for(group: str, option: str, files: Path) -> list[str]:
    """A small run that uses an option."""
    own = option if group in ("data", "experiment") else "dates"
    reads_both_ways = (group == "model/head" and option.startswith(("masked_lm", "pretraining"))) or option in ENCODERS
    recipe = RECIPE_FOR.get((group, option), "text" if reads_both_ways else own)
    if recipe not in groups()["data"]:
        pytest.skip(f"there is no data={recipe}")
    words = [word for word in TINY if option not in HEADLESS or "n_heads" not in word]
    words += [f"paths.outputs={files}", f"paths.cache={files}/cache"]
    words += [word.format(files) for word in OWN_FILES.get(recipe, [])]
    words += DATES if recipe == "dates" else []
    words += (
        ["tokenizer.vocab_size=300"]
        if recipe not in ("dates", *IMAGES) or (group, option) == ("tokenizer", "bpe")
        else []
    )
    words += ["task=masked_lm"] if reads_both_ways else []
    words += [f"tokenizer.path={files}/tokenizer"] if option == "pretrained" else []
    words += ["model.n_kv_heads=1"] if group == "model" and option.startswith(GROUPED) else []
    words += ["model=encoder"] if option.startswith(("masked_lm", "pretraining")) else []
    words += ONE if group == "trainer" else []
    words += ["match.to=1000"] if group == "match" and option != "none" else []
    choice = f"{group}={option}"
    if group == "logger":
        words.remove("logger=csv")
    if group == "data":
        return [choice, *words]
    return [f"data={recipe}", *words, *([choice] if choice != f"data={recipe}" else [])]


@pytest.mark.parametrize(("group", "option"), CASES)
def test_every_file_takes_a_training_step(group: str, option: str, files: Path, tmp_path: Path) -> None:
    config = settled(compose(overrides_for(group, option, files)))
    made = parts(config, checked(config))
    if group == "logger":
        for logger in loggers(config, RunFolder(tmp_path)):
            logger.close()  # type: ignore[attr-defined]
    model = made.model_factory()
    model.initialise(config["seed"])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    made.data.total_steps = 1
    batch = next(iter(made.data.train_dataloader()))
    optimizer = made.optimizer(model)
    loss = made.objective.loss(model, batch)
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    for old, (name, new) in zip(before, model.named_parameters(), strict=True):
        assert new.grad is None or not new.grad.any() or not torch.equal(old, new), f"{name} has not moved"


@pytest.mark.parametrize("words", TRAINED, ids=" ".join)
def test_every_option_of_training_trains(words: list[str], files: Path) -> None:
    """Two optimizer steps through the Trainer, a validation, a checkpoint."""
    steps = ["trainer.max_steps=2", "trainer.val_interval=2", "trainer.log_interval=1", "trainer.max_epochs=null"]
    config = settled(
        compose([*TINY, *DATES, f"paths.outputs={files}", f"paths.cache={files}/cache", *words, *steps, *ONE])
    )
    folder = created(config, words, checked(config))
    assert start_all([{}], rank_main, (folder, False)) == 0, folder.log(0).read_text()
    summary = json.loads(folder.summary.read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 2)
    assert math.isfinite(summary["final"]["test/loss"])
    factory = parts(config, own_data(folder, config)).model_factory
    model = factory()
    model.initialise(config["seed"])
    trained = read_checkpoint(folder.checkpoints / "last.ckpt")["state_dict"]
    same = [name for name, value in model.state_dict().items() if torch.equal(value, trained[f"model.{name}"])]
    assert not same, "these have not moved"


def test_files_of_conf_are_found() -> None:
    assert {"model", "model/attention", "data", "task", "trainer", "experiment", "debug"} <= set(groups())


@pytest.mark.parametrize(
    "file",
    [
        file
        for file in sorted(conf_dir().rglob("*.yaml"))
        if file.parent.name not in ("experiment", "debug")  # which set keys that other files explain
    ],
    ids=lambda file: file.relative_to(conf_dir()).as_posix(),
)
def test_every_key_is_explained(file: Path) -> None:
    """In a comment on its line or on that of a mapping it is in."""
    unexplained = []
    stack: list[tuple[int, bool]] = []
    text = re.sub(r"^(defaults|hydra):\n(?:[ #].*\n|\n)*", "", file.read_text() + "\n", flags=re.MULTILINE)
    for line in text.splitlines():
        match = re.match(r"^( *)([\w/@.]+):(.*)$", line)
        if not match:
            continue
        indent, explained = len(match[1]), "#" in match[3]
        stack = [(depth, known) for depth, known in stack if depth < indent]
        is_leaf = bool(match[3].partition("#")[0].strip())
        if is_leaf and not match[2].startswith("_") and not explained and not any(known for _, known in stack):
            unexplained.append(match[2])
        stack.append((indent, explained))
    assert not unexplained, f"{file}: add a comment with unit or range to {', '.join(unexplained)}"


@pytest.mark.parametrize("file", sorted((conf_dir() / "experiment").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_recipe_says_its_command(file: Path) -> None:
    assert re.search(r"^# `python train.py", file.read_text(), re.MULTILINE)
