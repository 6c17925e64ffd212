"""What a trained model scores on a split of its data, or on other data."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from triform.data.order import held_out_batches
from triform.data.other import other_split
from triform.data.prepare import Origin, Split, tell_unknown
from triform.data.sources.files import has_content
from triform.data.stream import Examples, HeldOut
from triform.run.build import build
from triform.run.errors import BadInput, nearest
from triform.run.folder import RunFolder, read_labels
from triform.run.load import Loaded, open_run
from triform.run.parts import loader, objective_of, own_data, read_origin
from triform.run.relations import check_relations
from triform.run.rerun import changed
from triform.run.values import LOADER, check_values
from triform.tasks.figures import Figures
from triform.training.hardware import device_type

SPLITS = ("test", "validation", "train")
"""In the order in which one is taken where none is named."""
ROWS = ("seq_len", "batch_size", "batch_tokens", "num_workers")
"""Keys of `data` that lay out the same examples otherwise; all but the first change no figure."""


def evaluate(
    run: str | Path, split: str | None = None, trust: Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[str, dict[str, float]]:
    """The split, with loss and the task's measures over every example of it, each once; loss in nats per target.

    Args:
        run: the run's folder or one of its checkpoints; the best one where it is the folder.
        split: `train`, `validation` or `test`; None: the first of test, validation and train that there is, or of
            which `overrides` name files.
        trust: packages of your own that the config names.
        overrides: changes of `data`, such as `data.test_files=x.tsv`: other data of the same kind, or longer rows.

    Raises:
        ValueError: no such run or split, the data is gone or not the run's own any more, an override that is none of
            data, rows longer than the model takes, or other data with labels that the run has not.
    """
    loaded = open_run(run, trust)
    if not overrides:
        return _own(loaded, loaded.config, split)
    for word in overrides:
        key = word.partition("=")[0]
        if not key.startswith("data."):
            raise BadInput(
                f"{word}: a trained model is measured as it is, only its data may be another; change keys of data, or "
                f"train anew: triform rerun {loaded.folder.path} {word}"
            )
    config = {**changed(loaded.folder, overrides)[0], "trust": list(trust)}
    check_values(config)
    check_relations(config)
    loaded = replace(loaded, objective=objective_of(config, loaded.tokenizer, read_labels(loaded.folder)))
    typed = {word.partition("=")[0].removeprefix("data.") for word in overrides}
    if typed <= set(ROWS):
        return _own(loaded, config, split)
    return _other(loaded, config, split, typed)


def _own(loaded: Loaded, config: Mapping[str, Any], split: str | None) -> tuple[str, dict[str, float]]:
    """Of the data that the run was prepared from, in the batches that `config` says."""
    check_files(loaded.folder, read_origin(loaded.folder))
    prepared = own_data(loaded.folder, loaded.config)
    split = _chosen(split, prepared.splits)
    return split, _figures(loaded, config, split, prepared.splits[split], prepared.spelt_bytes(split))


def _other(
    loaded: Loaded, config: Mapping[str, Any], split: str | None, typed: set[str]
) -> tuple[str, dict[str, float]]:
    """Of other data; where files are named, of those alone."""
    node = {key: value for key, value in config["data"].items() if key not in LOADER}
    named = {name: node[f"{name}_files"] for name in SPLITS if f"{name}_files" in typed}
    if named:
        split = _chosen(split, named)
        # Sources read the training files first and hold some out of them: here there are no others.
        node |= {"train_files": named[split], "validation_files": None, "test_files": None}
    source = build(node, config["trust"], "data")
    source.check()
    rows = source.load()
    split = split if named else _chosen(split, rows)
    assert split is not None
    with tempfile.TemporaryDirectory(prefix="triform-") as folder:
        found, n_unknown = other_split(
            rows["train" if named else split],
            source.kind,
            split,
            read_labels(loaded.folder),
            loaded.tokenizer,
            getattr(source, "shape", None),
            Path(folder),
        )
        spelt = found.n_bytes if source.kind == "text" and not n_unknown else None
        if n_unknown:
            tell_unknown(split, n_unknown / int(found.lengths.sum()))
        return split, _figures(loaded, config, split, found, spelt)


def _chosen(split: str | None, splits: Mapping[str, Any]) -> str:
    if split is None:
        return next(name for name in SPLITS if name in splits)
    if split not in splits:
        raise BadInput(
            f"--split {split}: the data has no such split{nearest(split, splits)}; there are {', '.join(splits)}"
        )
    return split


def _figures(
    loaded: Loaded, config: Mapping[str, Any], name: str, split: Split, n_bytes: int | None
) -> dict[str, float]:
    settings = loader(config, loaded.objective)
    examples = Examples(split, settings["seq_len"], config["seed"], train=False)
    if len(examples.lengths) == 0:
        raise BadInput(
            f"{loaded.folder.path}: the text has fewer than the 2 tokens of which one is predicted; name more"
        )
    for said in loaded.objective.left_out(name, split):
        print(f"warning: {said}", file=sys.stderr)
    batches = held_out_batches(examples.lengths, settings["batch_size"], settings["batch_tokens"], 1)
    held_out = HeldOut(examples, batches, loaded.objective.collate)
    device = device_type(config["trainer"]["accelerator"])
    model, figures = loaded.model.to(device), Figures(loaded.objective)
    figures.reset(device)
    with torch.inference_mode():
        for i in range(len(held_out)):
            batch = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in held_out[i].items()}
            figures.add(model, batch, final=True)
    return figures.means(n_bytes)


def check_files(folder: RunFolder, kept: Origin) -> None:
    """Refuse files that are not as the run read them.

    Raises:
        BadInput: it names the file.
    """
    for name, content in kept.files.items():
        if Path(name).is_file() and not has_content(Path(name), content):
            raise BadInput(
                f"{name} has changed since {folder.path} began, whose figures are of what was there; "
                f"put it back as it was, or train on it: triform rerun {folder.path}"
            )
