"""Models that were trained before: folders of Hugging Face, exports, runs."""

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from triform.data.tokenizers import Tokenizer
from triform.data.tokenizers.tokenizer import tokenizer_file
from triform.interop import ARCHITECTURES
from triform.interop.architecture import Architecture, Settings
from triform.interop.convert import to_ours, to_theirs
from triform.interop.files import CONFIG, WEIGHTS, Tensors, local_folder, read_config
from triform.layers.lora import merge
from triform.models.blank import blank
from triform.models.describe import described
from triform.models.encoder_decoder import spelled_out
from triform.models.weights import check_weights
from triform.run.build import build
from triform.run.compose import compose
from triform.run.errors import BadInput, one_line

OWN_TYPE = "triform"
"""`model_type` in the config.json of a model that no published architecture fits."""
IRRELEVANT = ("layer_drop", "n_tokens", "dropout", "weights_dropout", "kernel")
"""Keys of a model and its parts that change nothing of what it computes once it is trained."""


@dataclass(frozen=True)
class Pretrained:
    """A model on disk.

    Args:
        folder: it is in.
        node: the config that builds it, as `conf/model/*.yaml` has it.
        trust: packages of the user's own that the config may name.
    """

    folder: Path
    node: Mapping[str, Any]
    trust: Sequence[str] = ()

    def sketch(self) -> nn.Module:
        """The model without weights, on the meta device.

        Raises:
            ValueError: its config names what no model has, or may not be named.
        """
        try:
            with blank():
                model: nn.Module = build(self.node, self.trust, "model")()
        except TypeError as error:  # a key of a part is missing, is none, or has another type
            raise BadInput(f"{self.folder / CONFIG}: {one_line(error)}; put the file back as it was") from error
        except ValueError as error:  # a part's own, which names its key but not where that is said
            raise BadInput(f"{self.folder / CONFIG}: {one_line(error)}") from error
        return model

    def weights(self) -> dict[str, Tensor]:
        """Its parameters by name, as they are stored.

        Raises:
            ValueError: they are not those of the config, or not finite.
        """
        tensors = Tensors(self.folder)
        where = str(tensors.where)
        model = self.sketch()
        if self.architecture is not None:
            return to_ours(self.architecture, model, self.settings, tensors, where)
        weights = {name: tensors[name] for name in tensors}
        check_weights(model, weights, where)
        for name, value in weights.items():
            if not bool(torch.isfinite(value).all()):
                raise BadInput(f"{where} has numbers in {name} that are not finite; train or export it anew")
        return weights

    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer; None where the folder has none that the tokenizers library reads."""
        return None if tokenizer_file(self.folder) is None else Tokenizer.load(self.folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return read_config(self.folder)

    @cached_property
    def architecture(self) -> Architecture | None:
        """Whose names its tensors have; None: triform's own."""
        return None if self.config.get("model_type") == OWN_TYPE else architecture_of(self.config, self.folder)

    @cached_property
    def settings(self) -> Settings:
        """Its config.json with what that leaves out."""
        assert self.architecture is not None
        return Settings(self.config, self.architecture.defaults, str(self.folder / CONFIG))


def from_pretrained(
    path: str | Path,
    *,
    max_seq_len: int | None = None,
    dtype: torch.dtype | None = torch.float32,
    trust: Sequence[str] = (),
) -> tuple[nn.Module, Tokenizer | None]:
    """Model, in evaluation mode on the CPU, and tokenizer of a folder or a hub's repository.

    Of Hugging Face's architectures those of `triform.interop`; of triform's own, what `save_pretrained` wrote and
    runs. Weights are read from safetensors, never unpickled, and the config builds only classes of triform, torch.nn
    and what `trust` names.

    Args:
        path: a folder, a run, or a name such as "gpt2", which is downloaded.
        max_seq_len: most tokens in a row, where positions are no table: rotary, T5's and such; None: as config.json.
        dtype: of the weights; None: as they are stored.
        trust: packages of your own that a config of triform's names.

    Returns:
        The tokenizer is None where the folder has none that can be read.

    Raises:
        ValueError: the folder is no model that can be read here, in one line that says why.
    """
    if (Path(path).expanduser() / "config.yaml").is_file():
        from triform.run.load import load

        return load(path, trust)
    found = open_pretrained(path, trust)
    if max_seq_len is not None:
        found = Pretrained(found.folder, _lengthened(found.node, max_seq_len), trust)
    weights = found.weights()
    model = found.sketch()
    model.to_empty(device="cpu")
    model.load_state_dict(weights)
    return model.to(dtype or next(iter(weights.values())).dtype).eval(), found.tokenizer()


def _lengthened(node: Mapping[str, Any], max_seq_len: int) -> dict[str, Any]:
    """The config of a model that reads other lengths.

    Raises:
        BadInput: it has a vector for each position.
    """
    own = [dict(node[name]) for name in ("encoder", "decoder") if name in node]
    positions = [node["position"], *(stack["position"] for stack in own if stack.get("position"))]
    if any(str(position.get("_target_")).endswith(".Learned") for position in positions):
        raise BadInput(
            f"from_pretrained: max_seq_len={max_seq_len} has no meaning where each position has a learned vector; "
            f"leave it out (the model has {node['max_seq_len']})"
        )
    stacks = {name: {**node[name], "max_seq_len": None} for name in ("encoder", "decoder") if name in node}
    return {**node, **stacks, "max_seq_len": max_seq_len}


def open_pretrained(path: str | Path, trust: Sequence[str] = ()) -> Pretrained:
    """A model on disk, its weights not yet read; see `from_pretrained`."""
    folder = local_folder(path)
    config = read_config(folder)
    if config.get("model_type") == OWN_TYPE:
        node = config.get("model")
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise BadInput(f"{folder / CONFIG} describes no model; put the file back as it was exported")
        return Pretrained(folder, node, trust)
    architecture = architecture_of(config, folder)
    settings = Settings(config, architecture.defaults, str(folder / CONFIG))
    return Pretrained(folder, _node(architecture, settings, Tensors(folder)), trust)


def architecture_of(config: Mapping[str, Any], folder: Path) -> Architecture:
    """Which one a config.json is of.

    Raises:
        BadInput: it names none, or one that is not supported.
    """
    named = config.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise BadInput(f"{folder / CONFIG}: architectures={named!r} is no list of names; fetch the file again")
    for architecture in ARCHITECTURES:
        if named[:1] and named[0] in architecture.classes:
            return architecture
    what = " ".join(", ".join(named).split()) or f"model_type={config.get('model_type')!r}"
    known = ", ".join(name for architecture in ARCHITECTURES for name in architecture.classes)
    raise BadInput(f"{folder / CONFIG}: architecture {what} is not supported; supported: {known}")


def _node(architecture: Architecture, settings: Settings, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The model's config: a preset of `conf/model/` with what config.json says otherwise."""
    try:
        choice = architecture.read(settings, tensors)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise BadInput(f"{settings.where}: {one_line(error)}; fetch the file again") from error
    try:
        overrides = [f"{key}={_word(value)}" for key, value in choice.overrides.items()]
        return copy.deepcopy(_composed(f"model={choice.preset}", *overrides))
    except ValueError as error:
        raise BadInput(f"{settings.where}: {one_line(error)}") from error


@lru_cache(maxsize=64)
def _composed(*overrides: str) -> dict[str, Any]:
    """Not to be changed. What is read is often written again, and read back for that: composing takes the most time."""
    node: dict[str, Any] = compose(["experiment=none", *overrides])["model"]
    return node


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def save_pretrained(model: nn.Module, folder: str | Path, tokenizer: Tokenizer | None = None) -> str:
    """Write config.json and weights to a new folder, as `transformers` reads them where it has such a model.

    A model that no published architecture fits is written with triform's own names and config; `triform.load` and
    `from_pretrained` read both.

    Args:
        tokenizer: is written beside them, and config.json names its special tokens.

    Returns:
        The class of `transformers` that reads it, or "triform".

    Raises:
        ValueError: the folder exists and is not empty, or the model has a part that no config can name.
    """
    check_new(Path(folder).expanduser())
    model, node = plain(model)
    found = published(model, node)
    # RoBERTa counts positions from the number of the padding token: under another tokenizer it is another model.
    if found is not None and tokenizer is not None and found[1].get("pad_token_id") not in (None, tokenizer.pad_id):
        found = None
    if found is None:
        config: dict[str, Any] = {"model_type": OWN_TYPE, "architectures": [type(model).__name__], "model": node}
        tensors = {name: value.detach().contiguous() for name, value in model.named_parameters()}
    else:
        architecture, settings = found
        config = {**settings.given, **_special_tokens(settings.given, tokenizer)}
        tensors = to_theirs(architecture, model, Settings(config, {}, settings.where))
    with _new_folder(Path(folder).expanduser()) as partial:
        (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        if tokenizer is not None:
            tokenizer.save(partial)
    return OWN_TYPE if found is None else str(config["architectures"][0])


def plain(model: nn.Module) -> tuple[nn.Module, dict[str, Any]]:
    """The model without what only training knows, low-rank products merged, and the config that builds it."""
    node = described(model)
    if node.get("adapter") is not None:
        model = copy.deepcopy(model)
        merge(model)
    return model, {**node, "adapter": None, "frozen": []}


def published(model: nn.Module, node: Mapping[str, Any]) -> tuple[Architecture, Settings] | None:
    """The first published architecture that computes the same as this model, and its config.json; None: there is none.

    What an architecture writes down is read back, and must describe the same model.
    """
    for architecture in ARCHITECTURES:
        try:
            written = architecture.write(model, node)
            if written is None:
                continue
            config = {"model_type": architecture.model_type, "torch_dtype": _dtype(model), **written}
            config.setdefault("architectures", [architecture.classes[0]])
            settings = Settings(config, architecture.defaults, CONFIG)
            tensors = to_theirs(architecture, model, settings)
            with blank():
                again = build(_node(architecture, settings, tensors), (), "model")()
        except (LookupError, AttributeError, TypeError, ValueError):
            continue
        if _essence(described(again)) == _essence(node):
            return architecture, Settings(config, {}, CONFIG)
    return None


def _essence(node: Mapping[str, Any]) -> dict[str, Any]:
    """What a model computes in evaluation, without what only training or speed knows of, and said in one way."""
    rescales = str(node["init"].get("_target_")).endswith(".MuP")
    kept = {key: value for key, value in node.items() if key != "init" or rescales}
    if "encoder" in kept:
        kept = spelled_out(kept)
        kept |= {name: _sized(kept[name], kept["d_model"]) for name in ("encoder", "decoder")}
    else:
        kept = _sized(kept, kept["d_model"])
    return _without_rates(kept)


def _sized(stack: Mapping[str, Any], d_model: int) -> dict[str, Any]:
    """Widths and counts of heads as numbers, where a config may leave them to others."""
    n_heads = stack["n_heads"]
    head_dim = stack["head_dim"] or d_model // n_heads
    sized = {key: value for key, value in stack.items() if key != "n_kv_heads"} | {"head_dim": head_dim}

    def attention(of: Mapping[str, Any]) -> dict[str, Any]:
        if "full" in of and "local" in of:
            return {**of, "full": attention(of["full"]), "local": attention(of["local"])}
        said = {key: value for key, value in of.items() if key != "group_size"}
        said["n_kv_heads"] = stack["n_kv_heads"] or n_heads // (of.get("group_size") or n_heads)
        if said.get("scale", 0) is None:
            said["scale"] = head_dim**-0.5
        if said.get("out_bias", 0) is None:
            said["out_bias"] = said["bias"]
        return said

    return sized | {key: attention(sized[key]) for key in ("attention", "cross_attention") if key in sized}


def _without_rates(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_rates(one) for key, one in value.items() if key not in IRRELEVANT}
    return value


def _dtype(model: nn.Module) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def _special_tokens(config: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The ids that config.json names: the tokenizer's.

    Without a tokenizer those of an encoder-decoder are null, as what config classes have in their place is of other
    vocabularies; only where its decoder starts is left to the class, as Marian's takes no null.
    """
    two_stacks = bool(config.get("is_encoder_decoder"))
    if tokenizer is None:
        return dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")) if two_stacks else {}
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    return ids | {"decoder_start_token_id": tokenizer.start_id} if two_stacks else ids


def check_new(folder: Path) -> None:
    """Refuse a folder that holds something, before anything is computed for it.

    Raises:
        BadInput: something is there already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} exists; name a new folder, nothing is overwritten")


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder that is there whole, or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield partial
        for path in (path for path in partial.rglob("*") if path.is_file()):  # on the disk before its name is
            with path.open("rb") as file:
                os.fsync(file.fileno())
        partial.chmod(0o777 & ~_umask())
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
