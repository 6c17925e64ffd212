"""What one group of a config asks of another."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from triform.run.build import build, locate
from triform.run.errors import BadInput, show
from triform.run.folder import read_mapping
from triform.run.help import conf_dir


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
        raise BadInput(f"data.packing={show(packing)} is not known; set one of true, false")
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
        raise BadInput(f"data.streaming={show(streaming)} is not known; set one of true, false")
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
            raise BadInput(f"data.{key}={show(value)} is not a number above 0; set data.{key} to one, such as 8")
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
        raise BadInput(f"tokenizer.separate={show(separate)} is not true or false; set tokenizer.separate to one")
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
