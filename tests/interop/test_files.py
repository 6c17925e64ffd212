"""Folders that cannot be read: one line says which file, and what to do. LLaMA stands for all architectures."""

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.interop.parity import changed_config
from tests.interop.test_llama import llama
from triform.interop import ARCHITECTURES
from triform.interop.architecture import Architecture, Settings
from triform.interop.files import Tensors
from triform.run.pretrained import from_pretrained

INDEX = "model.safetensors.index.json"
NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    llama().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    llama().save_pretrained(folder, max_shard_size="20KB")
    return folder


def refused(folder: Path | str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        from_pretrained(folder)
    assert "\n" not in str(error.value)


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    """What changes the tensors of a folder."""

    def changed(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return changed


def text(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


def config(**keys: Any) -> Callable[[Path], None]:
    return lambda folder: changed_config(folder, **keys)


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


def pickled(name: str) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save({NORM: torch.ones(3)}, folder / name)

    return changed


def not_a_number(tensors: dict[str, torch.Tensor]) -> None:
    tensors[NORM][3] = float("nan")


def endless(tensors: dict[str, torch.Tensor]) -> None:
    tensors[NORM][3] = -float("inf")


CASES = {
    "no config": (removed("config.json"), r"has no config.json; name a folder that save_pretrained wrote, or a run"),
    "config cut off": (cut("config.json", 50), r"config.json cannot be read \(.*\); fetch it again"),
    "config no mapping": (text("config.json", "[1, 2]"), r"config.json holds no mapping of keys to values; fetch it"),
    "config not text": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe") and None, r"config.json cannot be read"),
    "config nested": (text("config.json", '{"a":' * 100_000), r"config.json cannot be read"),
    "config of a size only": (config(hidden_size=None), r"config.json has no hidden_size; give the folder that"),
    "unsupported": (
        config(architectures=["MambaForCausalLM"]),
        r"config.json: architecture MambaForCausalLM is not supported; supported: LlamaForCausalLM, ",
    ),
    "architecture no list": (
        config(architectures={"a": 1}),
        r"config.json: architectures={'a': 1} is no list of names; fetch the file again",
    ),
    "unnamed": (config(architectures=None), r"architecture model_type='llama' is not supported; supported: Llama"),
    "own code": (
        config(auto_map={"AutoModel": "modeling.Own"}),
        r"config.json: auto_map=.* wants code of the repository to be run, which triform never does; if the arch",
    ),
    "quantised": (
        config(quantization_config={"bits": 4}),
        r"config.json: quantization_config={'bits': 4}, but quantised weights are not supported; take the model as it",
    ),
    "eight bits": (
        weights(lambda t: t.update({NORM: torch.ones(24).to(torch.float8_e4m3fn)})),
        rf"model.safetensors has {NORM} as float8_e4m3fn, which is not supported",
    ),
    "rope": (
        config(rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
        r"config.json: rope_type='dynamic' is not supported; supported: default, linear, llama3, yarn",
    ),
    "rope no mapping": (config(rope_parameters="linear"), r"config.json: rope_parameters='linear' is no mapping"),
    "no weights": (removed("model.safetensors"), r"has no model.safetensors nor model.safetensors.index.json; fetch"),
    "cut in the header": (cut("model.safetensors", 100), r"model.safetensors is no whole file of safetensors \(.*\)"),
    "cut in the numbers": (cut("model.safetensors", -8), r"model.safetensors is no whole file of safetensors \(.*\)"),
    "empty": (cut("model.safetensors", 0), r"model.safetensors is no whole file of safetensors \(.*\); fetch it again"),
    "pickle": (
        pickled("pytorch_model.bin"),
        r"has its weights in pytorch_model.bin, a pickle, which may run code when it is read; save them with safe",
    ),
    "not finite": (weights(not_a_number), rf"model.safetensors has numbers in {NORM} that are not finite; fetch it"),
    "endless": (weights(endless), rf"model.safetensors has numbers in {NORM} that are not finite"),
    "missing": (weights(lambda t: t.pop(NORM)), rf"model.safetensors has no {NORM}, which LLaMA has; fetch it again"),
    "unexpected": (
        weights(lambda t: t.update({"model.extra": torch.ones(1), "model.more": torch.ones(1)})),
        r"model.safetensors has model.extra and 1 more, for which LLaMA as .*config.json describes it has no place",
    ),
    "too many layers": (config(num_hidden_layers=2), r"has model.layers.2.* more, for which LLaMA .* has no place"),
    "shape": (
        weights(lambda t: t.update({NORM: torch.ones(25)})),
        rf"model.safetensors has {NORM} of shape \[25\], by .*config.json it is \[24\]; fetch both again",
    ),
    "whole numbers": (
        weights(lambda t: t.update({NORM: torch.ones(24, dtype=torch.int64)})),
        rf"model.safetensors has {NORM} as int64, which is not supported; supported: float64, float32, bfloat16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_folder_that_is_wrong_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    spoil, message = CASES[name]
    folder = shutil.copytree(whole, tmp_path / "model")
    from_pretrained(folder)
    spoil(folder)
    refused(folder, message)


def index(**changed: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        values = json.loads((folder / INDEX).read_text())
        values["weight_map"] |= changed
        (folder / INDEX).write_text(json.dumps(values))

    return write


def unlisted(folder: Path) -> None:
    """Neither in the index nor in a file."""
    values = json.loads((folder / INDEX).read_text())
    path = folder / values["weight_map"].pop(NORM)
    (folder / INDEX).write_text(json.dumps(values))
    save_file({name: value for name, value in load_file(path).items() if name != NORM}, path)


def missing_shard(folder: Path) -> None:
    sorted(folder.glob("*.safetensors"))[1].unlink()


def cut_shard(folder: Path) -> None:
    path = sorted(folder.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-8])


def outside(folder: Path) -> None:
    """Beside the folder lies a file that is whole."""
    path = sorted(folder.glob("*.safetensors"))[0]
    shutil.copy(path, folder.parent / "other.safetensors")
    index(**{next(iter(load_file(path))): "../other.safetensors"})(folder)


SHARDED_CASES = {
    "missing shard": (missing_shard, rf"model-00002-of-\d+.safetensors is missing, though {INDEX} names it; fetch it"),
    "cut shard": (cut_shard, r"model-00002-of-\d+.safetensors is no whole file of safetensors"),
    "not in the shard": (
        lambda f: index(**{NORM: sorted(p.name for p in f.glob("*.safetensors"))[-1]})(f),
        rf"model-\d+-of-\d+.safetensors has no {NORM}, though {INDEX} says so; fetch both again",
    ),
    "outside": (outside, rf"{INDEX} names '../other.safetensors', which is no file of its folder; fetch it again"),
    "no file": (index(**{NORM: 3}), rf"{INDEX} names 3, which is no file of its folder"),
    "folder": (index(**{NORM: ".."}), rf"{INDEX} names '..', which is no file of its folder"),
    "missing tensor": (unlisted, rf"{INDEX} has no {NORM}, which LLaMA has; fetch it again"),
    "no map": (text(INDEX, '{"metadata": {}}'), rf"{INDEX} has no weight_map; fetch it again"),
    "no json": (text(INDEX, "weight_map"), rf"{INDEX} cannot be read"),
}


@pytest.mark.parametrize("name", SHARDED_CASES)
def test_an_index_that_is_wrong_is_refused(name: str, sharded: Path, tmp_path: Path) -> None:
    spoil, message = SHARDED_CASES[name]
    folder = shutil.copytree(sharded, tmp_path / "model")
    spoil(folder)
    refused(folder, message)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda one: one.model_type)
def test_text_where_a_number_is_meant_is_never_passed_on(architecture: Architecture) -> None:
    """Hydra would look up what `${...}` names, and read other text as a number."""
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), 6)
    usual = {**sizes, **architecture.defaults, "architectures": list(architecture.classes)}
    keys = [key for key, value in architecture.defaults.items() if isinstance(value, int | float)]
    messages = {}
    for key in keys:
        try:
            choice = architecture.read(Settings({**usual, key: "${oc.env:HOME}"}, {}, "config.json"), {})
        except ValueError as error:
            messages[key] = str(error)
        else:  # a key that this class does not look at
            assert "${" not in str(choice.overrides)
    assert len(messages) > len(keys) / 2
    for key, message in messages.items():
        assert re.match(rf"config.json: .*{key}='\${{oc.env:HOME}}'", message)


def test_a_link_out_of_the_folder_is_read_as_the_hubs_cache_has_it(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    from_pretrained(folder)


def test_nothing_is_unpickled(whole: Path, tmp_path: Path) -> None:
    """Not even under the name of a file of safetensors."""

    class Mark:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    folder = shutil.copytree(whole, tmp_path / "model")
    (folder / "model.safetensors").write_bytes(pickle.dumps(Mark()))
    refused(folder, r"model.safetensors is no whole file of safetensors")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Mark()))
    (folder / "model.safetensors").unlink()
    refused(folder, r"a pickle")
    assert not (tmp_path / "ran").exists()


def test_a_file_is_no_folder(whole: Path) -> None:
    path = whole / "model.safetensors"
    refused(path, rf"{re.escape(str(path))} is a file; name the folder that holds config.json and model.safetensors")


@pytest.mark.parametrize("name", ["no/such/folder", "./nowhere", "/nowhere/at/all", "~/no-such-folder"])
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(name: str) -> None:
    refused(name, r"no such folder; name one that holds config.json and model.safetensors, or a model of the hub")


def test_a_name_that_the_hub_does_not_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refused("nobody/no-such-model", r"nobody/no-such-model: no such folder, and the hub does not give it \(.+\); check")


def test_one_tensor_is_read_at_a_time(sharded: Path) -> None:
    tensors = Tensors(sharded)
    assert len(tensors) == len(list(tensors)) == 3 + 9 * 3
    assert len({tensors.file_of(name) for name in tensors}) == len(list(sharded.glob("*.safetensors")))
    assert tensors[NORM].shape == (24,)
