"""What can be refused before anything is on disk."""

import inspect
import math
import os
import re
import tempfile
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from triform.run.build import build, check_targets, locate, targets
from triform.run.errors import BadInput, nearest
from triform.run.folder import read_mapping
from triform.run.help import conf_dir
from triform.run.secrets import check_secrets
from triform.training.codes import POLICIES

NEEDED = ("seq_len", "batch_size", "batch_tokens", "num_workers")
LOADER = (*NEEDED, "packing", "weights", "streaming", "shuffle_mb", "validation_mb")
"""Keys of `data` that are the data loader's, not the source's; all data sets have the first ones."""

NOT_OF_A_RUN = ("experiment", "debug", "search", "compare")
"""Groups of `conf/` that are no section of a run's config."""

_POSITIVE = (
    "data.seq_len",
    "data.batch_size",
    "data.batch_tokens",
    "model.vocab_size",
    "trainer.max_steps",
    "trainer.max_epochs",
    "trainer.max_tokens",
    "trainer.max_hours",
    "trainer.val_interval",
    "trainer.log_interval",
    "trainer.save_interval",
    "trainer.num_nodes",
    "trainer.tensor_parallel",
    "trainer.accumulate",
    "trainer.gradient_clip",
    "trainer.max_skipped",
    "trainer.timeout",
)
_FRACTIONAL = ("trainer.max_epochs", "trainer.max_hours", "trainer.gradient_clip", "trainer.timeout")
WHOLE = tuple(key for key in _POSITIVE if key not in _FRACTIONAL)
"""The runner's own keys that are counts."""
_OPTIONAL = (
    "data.batch_size",
    "data.batch_tokens",
    "model.vocab_size",
    "trainer.max_steps",
    "trainer.max_epochs",
    "trainer.max_tokens",
    "trainer.max_hours",
    "trainer.val_interval",
    "trainer.save_interval",
    "trainer.gradient_clip",
    "trainer.timeout",
)
_CHOICES = {
    "trainer.accelerator": ("auto", "cpu", "gpu", "cuda"),
    "trainer.precision": ("auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true", "float8"),
    "trainer.strategy": ("auto", "ddp", "fsdp", "tensor_parallel"),
    "trainer.cpu_offload": (True, False),
    "trainer.profiler": (None, "simple", "pytorch"),
    "trainer.async_save": (True, False),
    "trainer.save_parts": (True, False),
    "trainer.compile": (True, False),
    "trainer.deterministic": (True, False),
    "trainer.overfit": (True, False),
    "trainer.test": (True, False),
    "trainer.non_finite": POLICIES,
    "traceback": (True, False),
}


def check(config: Mapping[str, Any]) -> None:
    """Refuse a config that cannot run: keys, values, relations between groups, and the machine.

    Raises:
        BadInput: in one line: what is wrong, its config key, what to do.
    """
    check_content(config)
    devices(config)
    check_writable(Path(config["paths"]["outputs"]), "paths.outputs")
    check_writable(Path(config["paths"]["cache"]), "paths.cache")


def check_content(config: Mapping[str, Any]) -> None:
    """Refuse what is wrong on any machine.

    Raises:
        BadInput: see `check`.
    """
    check_keys(config)
    check_trust(config["trust"])
    check_targets({key: value for key, value in config.items() if key != "trust"}, config["trust"])
    check_values(config)
    check_secrets(config)
    check_name(config["name"])
    for key, node in targets(config):
        check_arguments(node, key, config["trust"])
    check_relations(config)


@cache
def _schema() -> dict[str, tuple[str, ...]]:
    """Keys of the sections that are no class's arguments, as their own YAML files state them."""
    train = read_mapping(conf_dir() / "train.yaml")
    groups = [key for entry in train["defaults"] if isinstance(entry, dict) for key in entry]
    groups = [key for key in groups if not key.startswith("override ") and key not in NOT_OF_A_RUN]
    return {
        "": (*groups, *(key for key in train if key not in ("defaults", "hydra"))),
        "paths": tuple(train["paths"]),
        "trainer": tuple(read_mapping(conf_dir() / "trainer" / "default.yaml")),
    }


def check_keys(config: Mapping[str, Any]) -> None:
    """Refuse keys that nothing reads, and sections without a key that something reads."""
    for section, known in _schema().items():
        node = config.get(section, {}) if section else config
        if not isinstance(node, Mapping):
            raise BadInput(f"{section}={node!r} is no group of keys; it has {', '.join(known)}")
        dot = f"{section}." if section else ""
        for key in node:
            if key not in known:
                raise BadInput(f"{dot}{key}: no such key{nearest(str(key), known)}; there are {', '.join(known)}")
        for key in known:
            if key not in node:
                remedy = "start the file with defaults: [default]" if section == "trainer" else f"choose {key}=..."
                raise BadInput(f"{dot}{key} is missing; {remedy}")
    for key in NEEDED:
        if key not in config["data"]:
            raise BadInput(f"data.{key} is missing; add it to the YAML file of this data set")


def check_values(config: Mapping[str, Any]) -> None:
    """Refuse values of the runner's own keys that mean nothing."""
    from triform.layers.recompute import MODES  # here, as torch takes time

    for key, choices in (_CHOICES | {"trainer.activation_checkpointing": MODES}).items():
        value = _get(config, key)
        if value not in choices or (isinstance(value, int) and not isinstance(value, bool)):
            names = ["null" if choice is None else str(choice).lower() for choice in choices]
            near = nearest(str(value), names)
            raise BadInput(f"{key}={_show(value)} is not known{near}; set one of {', '.join(names)}")
    for key in _POSITIVE:
        value = _get(config, key)
        if value is None and key in _OPTIONAL:
            continue
        number = (int, float) if key in _FRACTIONAL else int
        kind = "a number" if key in _FRACTIONAL else "a whole number"
        if isinstance(value, bool) or not isinstance(value, number) or not value > 0:
            null = ", or null" if key in _OPTIONAL else ""
            raise BadInput(f"{key}={_show(value)} is not {kind} above 0; set {key} to one{null}")
    for key in ("seed", "data.num_workers"):
        value = _get(config, key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise BadInput(f"{key}={_show(value)} is not a whole number of at least 0; set {key} to one, such as 0")
    limits = ("max_steps", "max_epochs", "max_tokens", "max_hours")
    if all(config["trainer"][limit] is None for limit in limits):
        raise BadInput(f"trainer: none of {', '.join(limits)} is set; set one, such as trainer.max_steps=1000")
    if (config["data"]["batch_size"] is None) == (config["data"]["batch_tokens"] is None):
        raise BadInput(
            f"data.batch_size={_show(config['data']['batch_size'])} and "
            f"data.batch_tokens={_show(config['data']['batch_tokens'])}: set exactly one, and the other to null"
        )
    for key in ("paths.outputs", "paths.cache"):
        if not isinstance(_get(config, key), str) or not _get(config, key):
            raise BadInput(f"{key}={_show(_get(config, key))} is no folder; set {key}=FOLDER")
    for section in ("optimizer", "scheduler", "trainer"):
        for key, value in config[section].items():
            if isinstance(value, float) and not math.isfinite(value):
                raise BadInput(f"{section}.{key}={value} is not finite; set {section}.{key} to a number that is")


def check_trust(trust: Any) -> None:
    """Refuse what is no list of packages."""
    if not isinstance(trust, Sequence) or isinstance(trust, str) or not all(isinstance(name, str) for name in trust):
        raise BadInput(f"trust={_show(trust)} is no list of packages; write trust=[PACKAGE]")


RECORD = (
    *("model._target_", "task._target_", "tokenizer._target_", "data._target_", "seed", "paths.cache"),
    *("trainer.accelerator", *(f"data.{key}" for key in NEEDED)),
)
"""What using a trained model needs of its run's config."""


def check_record(config: Mapping[str, Any], file: Path) -> None:
    """Refuse a run's config that lacks what using its model needs; other keys may be those of another version.

    Raises:
        BadInput: it names the first key that is missing.
    """
    for key in RECORD:
        node: Any = config
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                raise BadInput(f"{file}: {key} is missing; put the file back as the run wrote it")
            node = node[part]


def choices(config: Mapping[str, Any], key: str) -> str | None:
    """What a key may be set to, in words; None: only the class that reads it knows."""
    if key in _CHOICES:
        return ", ".join(_show(choice) for choice in _CHOICES[key])
    if key in _POSITIVE:
        kind = "a number" if key in _FRACTIONAL else "a whole number"
        return f"{kind} above 0{', or null' if key in _OPTIONAL else ''}"
    section, _, name = key.rpartition(".")
    node: Any = config
    for part in section.split(".") if section else ():
        node = node[part]
    target = node.get("_target_")
    if not isinstance(target, str) or name.startswith("_"):
        return None
    parameter = inspect.signature(locate(target, config["trust"], section)).parameters.get(name)
    if parameter is None or not _are_plain(parameter.annotation):
        return None
    return _describe(parameter.annotation)


def check_name(name: Any) -> None:
    """Refuse a name that would leave `paths.outputs` or trouble a shell."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.,+@-]*", name) or len(name) > 100:
        raise BadInput(
            f"name={_show(name)} cannot name a folder; set name to at most 100 letters, digits, '_', '-', '.', "
            "not beginning with '.' or '-'"
        )


def check_arguments(node: Mapping[str, Any], key: str, trust: Sequence[str] = ()) -> None:
    """Refuse keys that the class of a node does not take, values of another type, and missing keys."""
    target = locate(node["_target_"], trust, key)
    parameters = inspect.signature(target).parameters
    any_key = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    own = {
        "data": LOADER,
        **({key: LOADER} if key.startswith("data.sources.") else {}),
        "model": ("vocab_size", "path"),
        "tokenizer": ("separate",),
    }.get(key, ())  # the runner's own
    given = [name for name in node if name not in ("_target_", "_partial_", "_args_", *own)]
    name = getattr(target, "__name__", node["_target_"])
    for argument in given:
        parameter = parameters.get(argument)
        if parameter is None or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            if any_key:
                continue
            known = [one for one in parameters if one in node or parameters[one].default is not inspect.Parameter.empty]
            raise BadInput(
                f"{key}.{argument}: {name} takes no such key{nearest(argument, parameters)}; "
                f"it has {', '.join(known) or 'none'}"
            )
        if not _fits(node[argument], parameter.annotation):
            wanted = _describe(parameter.annotation)
            raise BadInput(f"{key}.{argument}={_show(node[argument])} is not {wanted}; set {key}.{argument} to one")
    if not node.get("_partial_", False) and "_args_" not in node:
        for argument, parameter in parameters.items():
            required = parameter.default is parameter.empty and parameter.kind in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
            )
            if required and argument not in given:
                raise BadInput(f"{key}.{argument} is missing: {name} needs it; set {key}.{argument}=VALUE")


_PLAIN = (int, float, bool, str, type(None))


def _options(annotation: Any) -> list[Any]:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return list(typing.get_args(annotation)) if union else [annotation]


def _are_plain(annotation: Any) -> bool:
    return all(option in _PLAIN for option in _options(annotation))


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a plain value may be meant for a parameter; True where the annotation is not plain."""
    options = _options(annotation)
    lists = [option for option in options if typing.get_origin(option) in (list, Sequence)]
    if not all(option in _PLAIN or option in lists for option in options):
        return True
    if isinstance(value, Mapping):
        return "_target_" in value and bool(lists)  # which builds one
    if isinstance(value, list | tuple):
        return any(all(_fits(one, *typing.get_args(option)) for one in value) for option in lists)
    if isinstance(value, bool):
        return bool in options
    if isinstance(value, int) and float in options:
        return True
    return type(value) in options


def _describe(annotation: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    return " or ".join(
        words[option]
        if option in words
        else "a list" + (f", each {_describe(option.__args__[0])}" if _are_plain(option.__args__[0]) else "")
        for option in _options(annotation)
    )


def _show(value: Any) -> str:
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if _hashable(value) else str(value)


def _hashable(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _get(config: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.rpartition(".")
    return (config[section] if section else config).get(name)


def check_relations(config: Mapping[str, Any]) -> None:
    """Refuse a task that does not fit the model or the data, and rows longer than the model takes."""
    trust = config["trust"]
    model, task, data = (locate(config[group]["_target_"], trust, group) for group in ("model", "task", "data"))
    family = _attribute(model, "family", "model")
    # A source of several kinds tells by its config.
    kind = data.kind_of(config["data"]) if hasattr(data, "kind_of") else _attribute(data, "kind", "data")
    kinds, families = _attribute(task, "kinds", "task"), _attribute(task, "families", "task")
    if kind not in kinds:
        fitting = _tasks(lambda other: kind in other.kinds and family in other.families, trust)
        learns = " or ".join(kinds)
        remedy = f"set task={' or task='.join(fitting)}" if fitting else f"choose a data set of {learns}"
        raise BadInput(f"task: {task.__name__} learns from {learns}, not from data of kind {kind}; {remedy}")
    if family not in families:
        fitting = _tasks(lambda other: kind in other.kinds and family in other.families, trust)
        remedy = f"set model={' or model='.join(families)}" + (f", or task={' or '.join(fitting)}" if fitting else "")
        raise BadInput(f"task: {task.__name__} does not train model={family}; {remedy}")
    packing = config["data"].get("packing", False)
    if not isinstance(packing, bool):
        raise BadInput(f"data.packing={_show(packing)} is not known; set one of true, false")
    check_streaming(config, data, kind)
    packs = getattr(task, "packs", ())
    if packing and family not in packs:
        why = f"reads one example a row in model={family}" if packs else "predicts one thing of a row"
        raise BadInput(
            f"data.packing=true: {task.__name__} {why}; set data.packing=false (data.batch_tokens puts examples of "
            "like length together)"
        )
    embedding = config["model"].get("embedding")
    reads = "tokens"
    if embedding is not None:
        reads = _attribute(locate(embedding["_target_"], trust, "model.embedding"), "reads", "model.embedding")
    if (reads == "images") != (kind == "images"):
        raise BadInput(
            f"model.embedding: the model reads {reads}, not data of kind {kind}; choose another model, or such data"
        )
    if kind == "images":
        check_images(config, data)
    check_separate(config["tokenizer"], kind, family)
    longest = {"model": config["model"].get("max_seq_len")}
    for stack in ("encoder", "decoder"):
        node = config["model"].get(stack)
        if isinstance(node, Mapping) and node.get("max_seq_len") is not None:
            longest[f"model.{stack}"] = node["max_seq_len"]
    for key, length in longest.items():
        if isinstance(length, int) and config["data"]["seq_len"] > length:
            raise BadInput(
                f"data.seq_len={config['data']['seq_len']} is beyond {key}.max_seq_len={length}; "
                f"set {key}.max_seq_len to {config['data']['seq_len']} or more, or data.seq_len to at most {length}"
            )


def check_streaming(config: Mapping[str, Any], source: type, kind: str) -> None:
    """Refuse to stream what has to be read before training, and limits that mean nothing for a stream."""
    streaming = config["data"].get("streaming", False)
    if not isinstance(streaming, bool):
        raise BadInput(f"data.streaming={_show(streaming)} is not known; set one of true, false")
    if not streaming:
        return
    if kind != "text" or not hasattr(source, "shards"):
        raise BadInput(
            f"data.streaming=true: {source.__name__} of kind {kind} is prepared before training; set "
            "data.streaming=false, or stream running text with data=text or data=hub data.data_kind=text"
        )
    for key in ("shuffle_mb", "validation_mb"):
        value = config["data"].get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise BadInput(f"data.{key}={_show(value)} is not a number above 0; set data.{key} to one, such as 8")
    trainer = config["trainer"]
    if all(trainer[limit] is None for limit in ("max_steps", "max_tokens", "max_hours")):
        raise BadInput(
            f"data.streaming=true: trainer.max_epochs={trainer['max_epochs']} alone ends no stream, whose length is "
            "not known; set trainer.max_steps, trainer.max_tokens or trainer.max_hours"
        )
    if trainer["overfit"]:
        raise BadInput("trainer.overfit=true learns one batch, and a stream has many; set data.streaming=false")
    if getattr(locate(config["tokenizer"]["_target_"], config["trust"], "tokenizer"), "everything", False):
        raise BadInput(
            "data.streaming=true: this tokenizer has to read all text before training; choose one that need not, such "
            "as tokenizer=byte or tokenizer=bpe"
        )


def check_images(config: Mapping[str, Any], data: Any) -> None:
    """Refuse images of another size than the model reads, and rows of another length than it makes of them."""
    import torch

    with torch.device("meta"):
        reads = build(config["model"]["embedding"], config["trust"], "model.embedding")(1)
    given, wanted = data.shape_of(config["data"]), (reads.channels, reads.image_size, reads.image_size)
    if tuple(given) != wanted:
        raise BadInput(
            f"data: images of {' x '.join(map(str, given))} (channels, height, width) do not fit the "
            f"{' x '.join(map(str, wanted))} of the model; set model.embedding.channels={given[0]} and "
            f"model.embedding.image_size={given[1]}, or choose another model"
        )
    if config["data"]["seq_len"] != reads.seq_len:
        raise BadInput(
            f"data.seq_len={config['data']['seq_len']}: the model makes {reads.seq_len} vectors of an image; set "
            f"data.seq_len and model.max_seq_len to {reads.seq_len}"
        )


def check_separate(tokenizer: Mapping[str, Any], kind: str, family: str) -> None:
    """Refuse a vocabulary for each side where there are no sides, or one table."""
    separate = tokenizer.get("separate", False)
    if not isinstance(separate, bool):
        raise BadInput(f"tokenizer.separate={_show(separate)} is not true or false; set tokenizer.separate to one")
    separate = separate or str(tokenizer["_target_"]).endswith(".Separate")
    if separate and (kind != "pairs" or family != "encoder_decoder"):
        needs = f"pairs, not data of kind {kind}" if kind != "pairs" else f"model=encoder_decoder, not a {family}"
        raise BadInput(
            f"tokenizer: a vocabulary for source and target each needs {needs}; set tokenizer.separate=false or choose "
            "another tokenizer"
        )


def check_reach(config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse an override of what an encoder-decoder's stacks share where each stack has its own.

    Args:
        overrides: what the user typed.
    """
    stacks = {name: config["model"].get(name) for name in ("encoder", "decoder")}
    if not all(isinstance(stack, Mapping) for stack in stacks.values()):
        return

    from triform.models.encoder_decoder import unread

    for override in overrides:
        key = override.partition("=")[0].lstrip("+")
        shared = key.replace("/", ".").split(".")
        if "@" in key or len(shared) < 2 or shared[0] != "model" or shared[1] in stacks:
            continue
        if unread(config["model"], shared[1:2]):
            own = " and ".join(f"model.{name}.{shared[1]}" for name in stacks)
            raise BadInput(f"{override} reaches no stack: {own} are set; change those, or leave them out")


def _attribute(target: Any, name: str, group: str) -> Any:
    value = getattr(target, name, None)
    if value is None:
        raise BadInput(f"{group}._target_: {target.__name__} has no '{name}'; name a class meant as a {group}")
    return value


def _tasks(fits: Callable[[Any], bool], trust: Sequence[str]) -> list[str]:
    """Options of `task` whose class fits."""
    files = sorted((conf_dir() / "task").glob("*.yaml"))
    return [file.stem for file in files if fits(locate(read_mapping(file)["_target_"], trust, "task"))]


def devices(config: Mapping[str, Any]) -> tuple[str, int]:
    """The device's type ("cpu" or "cuda") and how many of its devices this machine gives the run.

    Raises:
        BadInput: more than there are, or none.
    """
    import torch

    from triform.training.hardware import device_type

    trainer = config["trainer"]
    device = device_type(trainer["accelerator"])
    there = torch.cuda.device_count() if device == "cuda" else os.cpu_count() or 1
    wanted = trainer["devices"]
    if wanted == "auto":
        wanted = 1 if device == "cpu" else there
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise BadInput(f"trainer.devices={_show(wanted)} is not a whole number above 0; set trainer.devices=1 or auto")
    if wanted > there:
        name = {"cuda": "GPUs", "cpu": "CPU cores"}[device]
        remedy = f"set trainer.devices to at most {there}" if there else "set trainer.accelerator=cpu"
        raise BadInput(f"trainer.devices={wanted} is more than the {there} {name} of this machine; {remedy}")
    return device, wanted


def check_writable(folder: Path, key: str) -> None:
    """Refuse a folder that cannot be made or written to; leaves nothing behind."""
    there = folder
    while not there.exists() and there.parent != there:
        there = there.parent
    try:
        if not there.is_dir():
            raise NotADirectoryError(20, "not a folder")
        with tempfile.TemporaryDirectory(prefix=".triform-", dir=there):
            pass
    except OSError as error:
        raise BadInput(
            f"{key}={folder} cannot be written to ({there}: {error.strerror}); set {key} to a folder of your own"
        ) from error
