"""The objects that a config describes."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch import nn

from triform.data.module import DataModule
from triform.data.prepare import Prepared, cached, prepare
from triform.data.sources.base import Source
from triform.data.tokenizers import Recipe
from triform.run.build import build, locate
from triform.run.check import LOADER, devices
from triform.run.errors import BadInput
from triform.run.folder import RunFolder
from triform.tasks.objective import Objective
from triform.training.fit import TrainerSettings


@dataclass(frozen=True)
class Parts:
    """What `triform.training.fit.fit` puts together."""

    model_factory: Callable[[], nn.Module]
    objective: Objective
    optimizer: Callable[[nn.Module], Any]
    schedule: Callable[..., float]
    data: DataModule
    settings: TrainerSettings
    callbacks: Sequence[Callback]


def data(config: Mapping[str, Any], progress: bool = False) -> Prepared:
    """Tokenizer and tokenised splits, made once and kept in `paths.cache`.

    Raises:
        ValueError: a data file is missing, empty or malformed.
    """
    source, recipe = _source(config)
    source.check()
    return prepare(source, recipe, Path(config["paths"]["cache"]), progress)


def known_data(config: Mapping[str, Any]) -> Prepared | None:
    """The same where it has been made before; else, or where it cannot be, None."""
    try:
        return cached(*_source(config), Path(config["paths"]["cache"]))
    except (ValueError, OSError):
        return None


def _source(config: Mapping[str, Any]) -> tuple[Source, Recipe]:
    trust = config["trust"]
    source = build({key: value for key, value in config["data"].items() if key not in LOADER}, trust, "data")
    return source, build(config["tokenizer"], trust, "tokenizer")


def parts(config: Mapping[str, Any], prepared: Prepared) -> Parts:
    """Everything that a run consists of besides its data.

    Raises:
        ValueError: a constructor refused its arguments; `model.vocab_size` is below the tokenizer's.
    """
    trust = config["trust"]
    objective = build(config["task"], trust, "task")(
        family=locate(config["model"]["_target_"], trust, "model").family,
        tokenizer=prepared.tokenizer,
        labels=prepared.labels,
        seq_len=config["data"]["seq_len"],
        seed=config["seed"],
    )
    trainer = dict(config["trainer"], devices=devices(config)[1])
    return Parts(
        model_factory=model_factory(config, prepared.tokenizer.vocab_size, objective.model_arguments()),
        objective=objective,
        optimizer=build(config["optimizer"], trust, "optimizer"),
        schedule=build(config["scheduler"], trust, "scheduler"),
        data=DataModule(
            prepared=prepared,
            collate=objective.collate,
            seed=config["seed"],
            accumulate=trainer["accumulate"],
            overfit=trainer["overfit"],
            **{key: config["data"][key] for key in LOADER},
        ),
        settings=TrainerSettings(**trainer),
        callbacks=list(build(config["callbacks"], trust, "callbacks").values()),
    )


def loggers(config: Mapping[str, Any], folder: RunFolder) -> list[Logger]:
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
        vocab_size: of the tokenizer, used where `model.vocab_size` is null.
        arguments: what the task wants the model to be built with, such as its head.

    Raises:
        BadInput: `model.vocab_size` is below the tokenizer's.
    """
    node = dict(config["model"])
    rows = node.pop("vocab_size", None)
    if rows is not None and rows < vocab_size:
        raise BadInput(
            f"model.vocab_size={rows} is below the tokenizer's {vocab_size}; "
            f"set model.vocab_size to null or {vocab_size} or more"
        )
    given = dict(arguments or {})
    for name in given:
        node.pop(name, None)
    factory = build(node, config["trust"], "model")
    if rows is not None and rows > vocab_size:
        given["n_tokens"] = vocab_size  # the rest pads the table and is never produced
    return partial(factory, vocab_size=rows or vocab_size, **given)
