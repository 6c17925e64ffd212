"""The objects that a config describes."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from triform.data.corpus import MB
from triform.data.prepare import Origin, Prepared, cached, prepare
from triform.data.prepare import origin as origin_of
from triform.data.sources.base import Source
from triform.data.sources.streamed import Streamed
from triform.data.tokenizers import Recipe, Separate, Tokenizer
from triform.run.build import build, locate
from triform.run.check import devices
from triform.run.errors import BadInput, one_line
from triform.run.folder import RunFolder
from triform.run.values import LOADER, NEEDED
from triform.tasks.objective import Objective
from triform.tasks.packing import packing
from triform.training.hardware import rank

if TYPE_CHECKING:  # Lightning takes seconds to import, and who only uses a model needs none of it
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import Logger

    from triform.data.module import DataModule
    from triform.training.fit import TrainerSettings


@dataclass(frozen=True)
class Parts:
    """What `triform.training.fit.fit` puts together."""

    model_factory: Callable[[], nn.Module]
    objective: Objective
    optimizer: Callable[[nn.Module], Any]
    schedule: Callable[..., float]
    data: "DataModule"
    settings: "TrainerSettings"
    callbacks: Sequence["Callback"]
    fill: Callable[[nn.Module], None] | None


def data(config: Mapping[str, Any], progress: bool = False) -> Prepared:
    """Tokenizer and tokenised splits, made once and kept in `paths.cache`.

    Raises:
        ValueError: a data file is missing, empty or malformed.
    """
    source, recipe = _source(config)
    return prepare(source, recipe, Path(config["paths"]["cache"]), progress)


def known_data(config: Mapping[str, Any]) -> Prepared | None:
    """The same where it has been made before; else, or where it cannot be, None."""
    try:
        return cached(*_source(config), Path(config["paths"]["cache"]))
    except (ValueError, OSError):
        return None


def check_data(config: Mapping[str, Any]) -> None:
    """Refuse data that cannot be prepared, as far as that shows without reading it.

    Raises:
        ValueError: a data file is missing or empty; the tokenizer's values mean nothing.
    """
    _source(config)[0].check()


def origin(config: Mapping[str, Any]) -> Origin:
    """What decides the content of `data`, without making it.

    Raises:
        ValueError: a data file is missing or empty, or a tokenizer that was there already is not.
    """
    source, recipe = _source(config)
    source.check()
    path = config["tokenizer"].get("path")
    if path is not None and not Path(path).exists():
        raise BadInput(
            f"tokenizer.path={path} is not there any more; put it back, as data is known by its tokenizer's files"
        )
    return origin_of(source, recipe, Path(config["paths"]["cache"]))


def own_data(folder: RunFolder, config: Mapping[str, Any]) -> Prepared:
    """The data that a run has learnt from, by the key that its folder keeps: no file of the user's is read for it.

    Raises:
        BadInput: it is in `paths.cache` no more and can't be made as it was.
    """
    kept = read_origin(folder)
    path = Path(config["paths"]["cache"]) / kept.key
    if path.is_dir():
        return Prepared.open(path, kept)
    check_same(folder, kept, origin(config))
    return data(config)


def read_origin(folder: RunFolder) -> Origin:
    """What a run's data was made from.

    Raises:
        BadInput: the folder does not say.
    """
    try:
        return Origin(**json.loads(folder.data.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{folder.data} does not say what the run learnt from ({one_line(error)})") from error


def check_same(folder: RunFolder, kept: Origin, now: Origin) -> None:
    """Refuse data that is not the run's own any more.

    Raises:
        BadInput: it names what has changed.
    """
    if kept.key != now.key:
        raise BadInput(
            f"{(kept.changes(now) or ['the data'])[0]} has changed since {folder.path} began, which learns from what "
            f"was there; put it back as it was, or start anew: triform rerun {folder.path}"
        )


def _source(config: Mapping[str, Any]) -> tuple[Source, Recipe]:
    trust = config["trust"]
    own = own_keys(config["data"])
    if isinstance(own.get("sources"), Mapping):  # of a mixture
        own["sources"] = {name: own_keys(source) for name, source in own["sources"].items()}
    source = build(own, trust, "data")
    if config["data"].get("streaming"):
        source = Streamed(source, config["data"]["validation_mb"])
    node = {key: value for key, value in config["tokenizer"].items() if key != "separate"}
    recipe = build(node, trust, "tokenizer")
    return source, Separate(recipe, recipe) if config["tokenizer"].get("separate") else recipe


def own_keys(node: Mapping[str, Any]) -> dict[str, Any]:
    """What of a data set's config is its source's."""
    return {key: value for key, value in node.items() if key not in LOADER}


def parts(config: Mapping[str, Any], prepared: Prepared) -> Parts:
    """Everything that a run consists of besides its data.

    Raises:
        ValueError: a constructor refused its arguments; `model.vocab_size` is below the tokenizer's.
    """
    from triform.training.fit import TrainerSettings

    trust = config["trust"]
    objective = objective_of(config, prepared.tokenizer, prepared.labels)
    trainer = dict(config["trainer"], devices=devices(config)[1])
    return Parts(
        model_factory=model_factory(config, n_tokens(prepared.tokenizer, objective), objective.model_arguments()),
        objective=objective,
        optimizer=build(config["optimizer"], trust, "optimizer"),
        schedule=build(config["scheduler"], trust, "scheduler"),
        data=data_module(config, prepared, objective),
        settings=TrainerSettings(**trainer),
        callbacks=list(build(config["callbacks"], trust, "callbacks").values()),
        fill=weights_to_begin_with(config),
    )


def data_module(config: Mapping[str, Any], prepared: Prepared, objective: Objective) -> "DataModule":
    """The loaders of a run's data.

    Raises:
        ValueError: rows or batches that do not fit the data.
    """
    from triform.data.module import DataModule

    source = _source(config)[0] if config["data"].get("streaming") else None
    return DataModule(
        prepared=prepared,
        corpus=source.corpus(int(config["data"]["shuffle_mb"] * MB), config["seed"])
        if isinstance(source, Streamed)
        else None,
        collate=objective.collate,
        seed=config["seed"],
        accumulate=config["trainer"]["accumulate"],
        overfit=config["trainer"]["overfit"],
        **loader(config, objective),
    )


def weights_to_begin_with(config: Mapping[str, Any]) -> Callable[[nn.Module], None] | None:
    """What gives a model the weights that `model.path` names; None: it begins random."""
    path = config["model"].get("path")
    if path is None:
        return None

    from triform.run.initial import fill

    return lambda model: fill(model, path, config["trust"], say=rank() == 0)


def loader(config: Mapping[str, Any], objective: Objective) -> dict[str, Any]:
    """What the keys of `data` that are the data loader's say, with rows of text as long as the task fills."""
    settings = {key: config["data"].get(key) for key in (*NEEDED, "packing", "weights")}
    settings["packing"] = packing(objective, settings["seq_len"]) if settings["packing"] else None
    length = objective.text_length()
    return settings if length is None else settings | {"seq_len": length}


def n_tokens(tokenizer: Tokenizer, objective: Objective) -> int:
    """Rows that a model's table needs at least: the vocabulary, and marks that only the task has."""
    return tokenizer.vocab_size + objective.extra_tokens


def objective_of(config: Mapping[str, Any], tokenizer: Tokenizer | None, labels: Sequence[str] | None) -> Objective:
    """The task of a run, given what its data came to."""
    trust = config["trust"]
    return build(config["task"], trust, "task")(
        family=locate(config["model"]["_target_"], trust, "model").family,
        tokenizer=tokenizer,
        labels=labels,
        seq_len=config["data"]["seq_len"],
        seed=config["seed"],
    )


def loggers(config: Mapping[str, Any], folder: RunFolder) -> "list[Logger]":
    """The experiment tracker that `logger` names; none for `logger=csv`."""
    node = config["logger"]
    if not node.get("_target_"):
        return []
    logger = build(node, config["trust"], "logger")
    if isinstance(logger, partial):  # one of ours, which wants to know the run
        run = {"folder": folder.path, "config": config, "name": f"{config['name']}/{folder.path.name}"}
        wanted = inspect.signature(logger.func).parameters
        logger = logger(**{key: value for key, value in run.items() if key in wanted})
    return [logger]


def model_factory(
    config: Mapping[str, Any], vocab_size: int, arguments: Mapping[str, Any] | None = None
) -> Callable[[], nn.Module]:
    """A function of nothing that builds the model.

    Args:
        vocab_size: tokens that the data and the task have, used where `model.vocab_size` is null.
        arguments: what the task wants the model to be built with, such as its head.

    Raises:
        BadInput: `model.vocab_size` is below that.
    """
    node = dict(config["model"])
    rows = node.pop("vocab_size", None)
    node.pop("path", None)  # of the weights that it begins with
    if rows is not None and rows < vocab_size:
        raise BadInput(
            f"model.vocab_size={rows} is below the {vocab_size} tokens of tokenizer and task; "
            f"set model.vocab_size to null or {vocab_size} or more"
        )
    given = dict(arguments or {})
    for name in given:
        node.pop(name, None)
    factory = build(node, config["trust"], "model")
    if rows is not None and rows > vocab_size:
        given["n_tokens"] = vocab_size  # the rest pads the table and is never produced
    return partial(factory, vocab_size=rows or vocab_size, **given)
