"""What a run begins with, where that is not random: `model=from_pretrained model.path=FOLDER`."""

import copy
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from hydra.core.config_store import ConfigStore
from torch import Tensor, nn

from triform.data.tokenizers import Tokenizer
from triform.data.tokenizers.tokenizer import tokenizer_file
from triform.layers.lora import LowRank
from triform.models.heads import LanguageModelHead
from triform.run.build import locate
from triform.run.compose import compose
from triform.run.errors import BadInput
from triform.run.folder import RunFolder, resolve_run
from triform.run.pretrained import Pretrained, open_pretrained


def imported(path: str) -> tuple[str, dict[str, Any], Path | None]:
    """An option of `model` that Hydra knows from now on, what it holds, and the folder of the model's tokenizer.

    Args:
        path: a run, an export, a folder of Hugging Face, or a name of its hub.

    Raises:
        BadInput: there is no model that can be read.
    """
    run = run_of(path)
    if run is not None:
        node, tokens = copy.deepcopy(run.read_config()["model"]), run.tokenizer
        node["path"] = str(Path(path).expanduser().resolve())
    else:
        found = open_pretrained(path)
        node, tokens = copy.deepcopy(dict(found.node)), found.folder
        node["path"] = str(found.folder.resolve())
        for name in ("n_tokens", "n_source_tokens"):  # the tokenizer's, which the runner supplies
            node.pop(name, None)
    node["head"] = _language_model(node)
    option = f"pretrained_{hashlib.blake2b(json.dumps(node, sort_keys=True).encode(), digest_size=6).hexdigest()}"
    choices = {"defaults": [{"adapter": None}, "_self_"]}
    ConfigStore.instance().store(name=option, group="model", node={**choices, **node})
    return option, node, None if tokenizer_file(tokens) is None else tokens


def check_tokenizer(path: str, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer whose tokens are others than the rows of the model's table were learned for; more are right.

    Raises:
        BadInput: a token of the model's own has another id here, or none.
    """
    run = run_of(path)
    folder = open_pretrained(path).folder if run is None else run.tokenizer
    if tokenizer_file(folder) is None:
        return
    own = Tokenizer.load(folder)
    for was, now in ((own, tokenizer), (own.source, tokenizer.source)):
        numbers = now.backend.get_vocab()
        for token, number in was.backend.get_vocab().items():
            if numbers.get(token) != number:
                raise BadInput(
                    f"tokenizer: {token!r} is token {number} of model.path={path} and "
                    f"{'none' if token not in numbers else f'token {numbers[token]}'} here, so that its rows would "
                    "stand for others; leave tokenizer out, as the model's own comes along"
                )


def run_of(path: str) -> RunFolder | None:
    """The run that a path names; None where it is no run's."""
    try:
        return resolve_run(path)
    except BadInput:
        return None


def _language_model(node: Mapping[str, Any]) -> dict[str, Any]:
    """A head that predicts tokens: the model's, or where it has another one that of its family.

    A task that wants another head brings it.
    """
    head: dict[str, Any] = dict(node["head"])
    head = dict(head.get("main", head))  # of two, as BERT has them for pre-training, the one that gives logits
    if locate(head["_target_"], (), "model.head") is LanguageModelHead:
        return head
    family = locate(node["_target_"], (), "model").family
    usual: dict[str, Any] = compose(["experiment=none", f"model={family}"])["model"]["head"]
    return usual


def fill(model: nn.Module, path: str, trust: Sequence[str] = (), say: bool = True) -> None:
    """Give a model that has just been initialised the weights of a folder or run, as far as they are of the same parts.

    A head that the folder has not stays random, one that the model has not is left out, and both are said. A
    larger vocabulary keeps the old rows and begins the new ones random. Rows that a run had behind its vocabulary, for
    marks of its task such as sentinels, are left out where this task has none.

    Args:
        say: on standard error; of all ranks one.

    Raises:
        BadInput: the model has another part or size elsewhere.
    """
    weights = {name.replace("head.main.", "head.", 1): value for name, value in _weights(path, trust).items()}
    adapted = tuple(name for name, module in model.named_modules() if isinstance(module, LowRank))
    own = dict(model.named_parameters())
    new, grown, cut, taken = [], [], [], 0
    from_run = run_of(path) is not None
    with torch.no_grad():
        for name, value in own.items():
            given = weights.pop(name, None)
            if given is not None and given.shape == value.shape:
                value.copy_(given)
                taken += 1
            elif given is not None and _is_grown(name, given, value):
                value[: len(given)] = given.to(value)
                taken += 1
                grown.append(name)
            elif given is not None and from_run and _is_grown(name, value, given):
                value.copy_(given[: len(value)])
                taken += 1
                cut.append(name)
            elif name.startswith("head."):
                new.append(name)
            elif adapted and name.startswith(adapted):
                continue
            else:
                what = f"no {name}" if given is None else f"{name} of shape {list(given.shape)}"
                raise BadInput(
                    f"model.path={path} has {what}, the model has it of shape {list(value.shape)}; leave the sizes and "
                    "parts of a pretrained model as they are"
                )
    if unused := [name for name in weights if not name.startswith("head.")]:
        raise BadInput(
            f"model.path={path} has {unused[0]}, which this model has not; leave the sizes and parts of a pretrained "
            "model as they are"
        )
    if say:
        beside = f"; beside {len(adapted)} projections low-rank ones, which are learned" if adapted else ""
        print(_told(path, taken, new, grown, cut, list(weights)) + beside, file=sys.stderr)


def _told(path: str, n: int, new: list[str], grown: list[str], cut: list[str], left: list[str]) -> str:
    text = f"{n} tensors from {path}"
    if new:
        text += f"; new and random: {', '.join(new)}"
    if grown:
        text += f"; with new rows at the end, which are random: {', '.join(grown)}"
    if cut:
        text += f"; without their last rows, for marks that this task has not: {', '.join(cut)}"
    if left:
        text += f"; left out, as the task has another head: {', '.join(left)}"
    return text


def _is_grown(name: str, given: Tensor, value: Tensor) -> bool:
    """Whether a parameter has a row for each token, and more of them than before."""
    by_token = ("embedding.table.weight", "head.projection.weight", "head.bias")
    return name in by_token and given.shape[1:] == value.shape[1:] and len(given) < len(value)


def _weights(path: str, trust: Sequence[str]) -> dict[str, Tensor]:
    run = run_of(path)
    if run is not None:
        from triform.run.load import checkpoint, weights

        return weights(checkpoint(run, Path(path)))
    found: Pretrained = open_pretrained(path, trust)
    return found.weights()


def expanded(arguments: Sequence[str]) -> list[str]:
    """Overrides with `model=from_pretrained model.path=FOLDER` as the model that the folder holds, and its tokenizer.

    Raises:
        BadInput: `model.path` is missing or names no model, or the folder has no tokenizer and none is chosen.
    """
    values = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    path = values.get("model.path")
    if path is None:
        raise BadInput("model=from_pretrained needs the folder of the model; write model.path=FOLDER")
    path = path.strip("'\"")
    if "," in path and not os.path.exists(path):
        return list(arguments)  # a sweep over several, each of which comes here by itself
    option, _, tokens = imported(path)
    words = [argument for argument in arguments if argument.partition("=")[0] not in ("model", "model.path")]
    chosen = [f"model={option}"]
    if "tokenizer" not in values:
        if tokens is None:
            raise BadInput(
                f"model.path={path} has no tokenizer.json or tokenizer.model, and another one gives its embeddings "
                "other tokens; choose the one it was trained with: tokenizer=pretrained tokenizer.path=FOLDER"
            )
        chosen += ["tokenizer=pretrained", f"tokenizer.path={json.dumps(str(tokens.resolve()), ensure_ascii=False)}"]
    return [*chosen, *words]
