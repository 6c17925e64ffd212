"""Folders as `transformers` writes them: config.json, and weights in safetensors, perhaps in several files."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
"""What is fetched of a hub's repository: no pickles and no code."""


def local_folder(path: str | Path) -> Path:
    """The folder of that name, else the hub's repository, downloaded.

    Raises:
        ValueError: neither is there.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ValueError(f"{path} is a file; name the folder that holds {CONFIG} and {WEIGHTS}")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", str(path)):
        raise ValueError(f"{path}: no such folder; name one that holds {CONFIG} and {WEIGHTS}, or a model of the hub")

    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(path), allow_patterns=list(HUB_FILES)))
    except Exception as error:  # many kinds: no network, no such repository, no access
        why = shorten(str(error), 240, placeholder=" ...") or type(error).__name__
        raise ValueError(
            f"{path}: no such folder, and the hub does not give it ({why}); check the name and the network, "
            "and for a gated model log in with: hf auth login"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        ValueError: it is missing or no mapping, or wants code of its repository to be run or is of quantised weights.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{folder} has no {CONFIG}; name a folder that save_pretrained wrote, or a run")
    values = _json(path)
    if values.get("auto_map"):
        raise ValueError(
            f"{path}: auto_map={values['auto_map']!r} wants code of the repository to be run, which triform never "
            "does; if the architecture is a known one, take auto_map out"
        )
    if values.get("quantization_config"):
        raise ValueError(
            f"{path}: quantization_config={values['quantization_config']!r}, but quantised weights are not supported; "
            "take the model as it was before"
        )
    return values


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({' '.join(str(error).split())}); fetch it again") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds no mapping of keys to values; fetch it again")
    return values


class Tensors(Mapping[str, Tensor]):
    """The tensors of a folder by name, each read from disk when it is asked for.

    Raises:
        ValueError: there is no file of safetensors, or one is missing, cut off, or not as the index says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file_of: dict[str, Path] = {}
        index = folder / INDEX
        self.where = folder / WEIGHTS if (folder / WEIGHTS).is_file() else index
        """What lists them."""
        if (folder / WEIGHTS).is_file():
            self._add(folder / WEIGHTS)
        elif index.is_file():
            self._add_all(index)
        else:
            pickles = sorted(p.name for kind in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(kind))
            if pickles:
                raise ValueError(
                    f"{folder} has its weights in {pickles[0]}, a pickle, which may run code when it is read; save "
                    f"them with safetensors: model.save_pretrained(FOLDER) of a recent transformers writes {WEIGHTS}"
                )
            raise ValueError(f"{folder} has no {WEIGHTS} nor {INDEX}; fetch them again")

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self._file_of[name], framework="pt") as file:
            tensor = file.get_tensor(name)
        assert isinstance(tensor, Tensor)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def file_of(self, name: str) -> Path:
        """Where a tensor is."""
        return self._file_of[name]

    def _add(self, path: Path) -> list[str]:
        try:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{path} is no whole file of safetensors ({' '.join(str(error).split())}); fetch it again"
            ) from error
        for name in names:
            self._file_of[name] = path
        return names

    def _add_all(self, index: Path) -> None:
        files = _json(index).get("weight_map")
        if not isinstance(files, dict) or not files:
            raise ValueError(f"{index} has no weight_map; fetch it again")
        there: dict[str, list[str]] = {}
        for name, file in sorted(files.items()):
            if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
                raise ValueError(f"{index} names {file!r}, which is no file of its folder; fetch it again")
            path = index.parent / file
            if not path.is_file():
                raise ValueError(f"{path} is missing, though {INDEX} names it; fetch it again")
            if file not in there:
                there[file] = self._add(path)
            if name not in there[file]:
                raise ValueError(f"{path} has no {name}, though {INDEX} says so; fetch both again")
