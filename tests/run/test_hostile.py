"""Configs that somebody else wrote: nothing that they name is imported or called unless it is a part."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

import triform
from triform.run import build as module
from triform.run.build import LIBRARIES, MOST_NODES, OURS, build, check_targets
from triform.run.errors import BadInput
from triform.run.folder import read_mapping

OUTSIDE = [
    # what runs commands
    *[
        "os.system",
        "os.popen",
        "os.execv",
        "os.spawnl",
        "os.posix_spawn",
        "os.path.os.system",
        "posix.system",
        "pty.spawn",
        "subprocess.run",
        "subprocess.Popen",
        "subprocess.check_output",
        "subprocess.getoutput",
        "subprocess.os.system",
        "multiprocessing.Process",
        "multiprocessing.util.os.system",
        "asyncio.create_subprocess_shell",
        "shutil.os.system",
        "platform.os.system",
        "commands.getoutput",
        "webbrowser.open",
        "ctypes.CDLL",
        "cffi.FFI",
        "code.interact",
        "pdb.run",
        "timeit.timeit",
        "cProfile.run",
        "trace.Trace",
        "runpy.run_path",
        "runpy.run_module",
    ],
    # what runs Python
    *[
        "builtins.eval",
        "builtins.exec",
        "builtins.compile",
        "builtins.open",
        "builtins.getattr",
        "builtins.__import__",
        "eval",
        "exec",
        "open",
        "print",
        "__import__",
        "type",
        "object",
        "str.format",
        "__builtins__.eval",
        "__main__.main",
        "importlib.import_module",
        "importlib.util.spec_from_file_location",
        "importlib.reload",
        "pkgutil.get_data",
        "types.FunctionType",
        "types.CodeType",
        "functools.partial",
        "functools.reduce",
        "operator.methodcaller",
        "operator.attrgetter",
        "operator.call",
        "itertools.starmap",
        "inspect.currentframe",
        "sys.exit",
        "sys.settrace",
        "atexit.register",
        "threading.Thread",
        "signal.signal",
        "gc.get_objects",
        "weakref.finalize",
        "site.main",
    ],
    # what reads objects
    *[
        "pickle.loads",
        "pickle.load",
        "_pickle.loads",
        "dill.loads",
        "cloudpickle.loads",
        "joblib.load",
        "marshal.loads",
        "shelve.open",
        "yaml.load",
        "yaml.unsafe_load",
        "yaml.full_load",
        "jsonpickle.decode",
        "numpy.load",
        "numpy.lib.npyio.load",
        "pandas.read_pickle",
        "torch.load",
        "torch.serialization.load",
        "torch.jit.load",
        "torch.hub.load",
        "torch.hub.load_state_dict_from_url",
        "torch.package.PackageImporter",
        "torch.ops.load_library",
        "torch.classes.load_library",
        "torch.utils.cpp_extension.load",
        "torch.utils.cpp_extension.load_inline",
        "torch.export.load",
        "torch.compile",
        "torch.save",
        "torch.onnx.export",
        "torch.distributed.launch.main",
    ],
    # what reads, writes, removes, sends
    *[
        "shutil.rmtree",
        "shutil.copyfile",
        "shutil.unpack_archive",
        "os.remove",
        "os.rename",
        "os.environ.get",
        "os.getenv",
        "os.putenv",
        "os.kill",
        "os.chmod",
        "pathlib.Path.unlink",
        "pathlib.Path",
        "io.open",
        "tempfile.mkdtemp",
        "tarfile.open",
        "zipfile.ZipFile",
        "urllib.request.urlopen",
        "urllib.request.urlretrieve",
        "http.client.HTTPConnection",
        "socket.socket",
        "ftplib.FTP",
        "smtplib.SMTP",
        "requests.get",
        "httpx.get",
        "fsspec.open",
        "logging.config.dictConfig",
        "logging.config.fileConfig",
        "logging.FileHandler",
        "sqlite3.connect",
        "readline.read_history_file",
    ],
    # of the libraries beside the allowed ones
    *[
        "hydra.utils.instantiate",
        "hydra.utils.call",
        "hydra.utils.get_method",
        "hydra.utils.get_class",
        "hydra.main",
        "hydra._internal.utils._locate",
        "omegaconf.OmegaConf.load",
        "omegaconf.OmegaConf.register_new_resolver",
        "lightning.Trainer",
        "lightning.pytorch.Trainer",
        "lightning.pytorch.cli.LightningCLI",
        "lightning.fabric.Fabric",
        "lightning.pytorch.trainer.call.sys.exit",
        "lightning.pytorch.utilities.migration.migrate_checkpoint",
        "lightning.pytorch.core.saving.load_hparams_from_yaml",
        "lightning.pytorch.plugins.io.TorchCheckpointIO",
        "transformers.AutoModel.from_pretrained",
        "transformers.pipeline",
        "datasets.load_dataset",
        "wandb.init",
        "huggingface_hub.snapshot_download",
        "tokenizers.Tokenizer.from_file",
        "sentencepiece.SentencePieceProcessor",
        "torchvision.models.resnet18",
        "matplotlib.pyplot.savefig",
        "optuna.create_study",
        "sacrebleu.main",
    ],
    # of triform, but no parts
    *[
        "triform.load",
        "triform.run.job.run",
        "triform.run.job.os.system",
        "triform.run.folder.create",
        "triform.run.ranks.launch",
        "triform.run.ranks.os.kill",
        "triform.run.build.importlib.import_module",
        "triform.run.build.build",
        "triform.commands.main",
        "triform.sweeps.slurm.subprocess.run",
        "triform.training.environment.subprocess.run",
        "triform.training.fit.fit",
        "triform.training.saving.read_checkpoint",
        "triform.training.checkpoints.shutil.rmtree",
        "triform.data.prepare.prepare",
        "triform.data.spool.os.remove",
        "triform.interop.files.local_folder",
        "triform.analysis.runs.yaml.load",
        "hydra_plugins.triform.os.system",
    ],
    # what looks like something allowed
    *[
        "torch.nnx.Linear",
        "torchx.nn.Linear",
        "torch_nn.Linear",
        "triformx.layers.Attention",
        "triform.layersx.Attention",
        "triform.modelsx.decoder",
        "triform.training.optimizersx.adamw",
        "lightning.pytorch.callbacksx.Callback",
        "t\u043erch.nn.Linear",
        "\uff54orch.nn.Linear",
        "torch.n\u0578.Linear",
        "tr\u0456form.layers.attention.Attention",
        "torch\u2024nn\u2024Linear",
        "Torch.nn.Linear",
        "TORCH.NN.LINEAR",
        "torch.NN.Linear",
        "lightning.pytorch.Callbacks.X",
    ],
    # private names on the way
    *[
        "torch.nn.__class__",
        "torch.nn.Module.__subclasses__",
        "torch.nn.Linear.__init__.__globals__",
        "torch.nn.__loader__",
        "torch.nn.Module.__init__",
        "torch.nn.__builtins__.eval",
        "torch.nn.modules.module._addindent",
        "torch.nn.modules.module.__dict__",
        "triform.layers.attention.Attention.__mro__",
        "torch.nn.Linear.__reduce__",
        "triform.layers.attention.__builtins__",
        "triform.training.loggers._start_wandb",
        "torch.optim.Optimizer.__class__",
        "lightning.pytorch.loggers.wandb.__spec__.loader",
        "torch.nn._reduction.warnings",
    ],
]
NO_NAME = [
    *("", " ", ".", "..", "torch..nn.Linear", ".torch.nn.Linear", "torch.nn.Linear.", "torch.nn.Linear ", " os.system"),
    *("torch.nn.Linear()", "torch.nn.Linear\n", "torch.nn.Linear\0", "torch.nn/Linear", "../../evil.X", "/tmp/evil.py"),
    *("torch.nn:Linear", "torch.nn.Linear;os.system", "torch nn Linear", "${oc.env:HOME}", "${model._target_}"),
    *("${oc.decode:'os.system'}", "torch.nn.${name}", "os.system('id')", "lambda: 1", "torch.nn['Linear']"),
    *("torch.nn.\u202eraeniL", "torch.nn.Li\u200bnear", "torch.nn.Linear#", "-m os", "0", "1.5", "torch.nn.2"),
    *(None, 0, 1, 1.5, True, False, [], ["os.system"], {}, {"_target_": "os.system"}, ["torch", "nn", "Linear"]),
]
# they begin as something allowed does
LED_AWAY = [
    *[
        "torch.nn.modules.module.warnings.warn",
        "torch.nn.modules.module.functools.partial",
        "torch.nn.functional.relu",
        "torch.nn.modules.module.torch.load",
        "torch.nn.modules.module.torch.hub.load",
        "torch.nn.init.normal_",
        "torch.nn.parallel.distributed.os.system",
        "torch.nn.parallel.distributed.sys.exit",
        "torch.nn.Module.apply",
        "torch.nn.parallel.distributed.functools.partial",
        "torch.nn.modules.container.OrderedDict",
        "torch.nn.Linear.forward",
        "torch.nn.modules.module.weakref.finalize",
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.Parameter",
        "torch.nn",
        "torch.optim.swa_utils.AveragedModel",
        "torch.optim.optimizer.functools.partial",
        "torch.optim.lr_scheduler.LambdaLR",
        "torch.optim.adamw.torch.load",
        "torch.optim.optimizer.warnings.warn",
        "torch.optim",
        "lightning.pytorch.loggers.wandb.os.system",
        "lightning.pytorch.loggers.csv_logs.os.remove",
        "lightning.pytorch.loggers.wandb.torch.load",
        "lightning.pytorch.loggers.tensorboard.os.path.join",
        "lightning.pytorch.callbacks.model_checkpoint.shutil.rmtree",
        "lightning.pytorch.callbacks.timer.time.sleep",
        "lightning.pytorch.callbacks.model_checkpoint.yaml.load",
        "lightning.pytorch.callbacks.lambda_function.pl.Trainer",
        "lightning.pytorch.profilers.profiler.os.makedirs",
        "lightning.pytorch.profilers.pytorch.os.remove",
        "lightning.pytorch.callbacks",
        "lightning.pytorch.loggers.logger.rank_zero_only",
        "triform.layers.attention.nn.Linear",
        "triform.layers.attention",
        "triform.layers.kernels.torch.load",
        "triform.layers.init.hashlib.new",
        "triform.data.sources.files.read_text",
        "triform.data.tokenizers.Tokenizer.load",
        "triform.data.sources.files.hashlib.file_digest",
        "triform.training.loggers.os.system",
        "triform.models.decoder.torch.load",
        "triform.training.loggers.wandb_id",
        "triform.training.loggers.queue.Queue",
        "triform.tasks.task.time.sleep",
        "triform.training.optimizers.Callable",
        "triform.training.averages.torch.save",
        "triform.tasks.objective.np.load",
        "triform.tasks.objective.ABC.register",
        "triform.layers.stack.Stack.forward",
        "triform.models",
        "triform.tasks",
    ],
]

PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda target: {"_target_": target, "command": "touch evil"},
    "nested": lambda target: {"a": {"b": [{"c": [{"_target_": target}]}]}},
    "inside a part": lambda target: {
        "_target_": "torch.nn.Sequential",
        "_args_": [{"_target_": target, "_args_": ["id"]}],
    },
    "inside a factory": lambda target: {"_target_": "torch.nn.Linear", "_partial_": True, "x": {"_target_": target}},
    "as a factory": lambda target: {"callbacks": {"x": {"_target_": target, "_partial_": True}}},
}
HOSTILE = [
    pytest.param(target, place, id=f"{target!r} {place}"[:90].encode("ascii", "backslashreplace").decode())
    for number, target in enumerate([*OUTSIDE, *NO_NAME, *LED_AWAY])
    for place in (list(PLACES)[number % len(PLACES)], list(PLACES)[(number + 2) % len(PLACES)])
]


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names that are imported meanwhile; nothing dangerous is called, whoever calls it."""
    imported: list[str] = []

    def note(name: str) -> Any:
        imported.append(name)
        return importlib.import_module(name)

    def refuse(*args: Any, **keywords: Any) -> Any:
        raise AssertionError(f"called with {args}")

    monkeypatch.setattr(module, "importlib", SimpleNamespace(import_module=note))
    for owner, name in [(os, "system"), (os, "popen"), (subprocess, "Popen"), (os, "kill")]:
        monkeypatch.setattr(owner, name, refuse)
    yield imported
    allowed = (*OURS, *LIBRARIES)
    assert all(any(f"{name}.".startswith(f"{one}.") for one in allowed) for name in imported), imported


def test_there_are_enough_of_them() -> None:
    targets = [*OUTSIDE, *NO_NAME, *LED_AWAY]
    assert len({repr(target) for target in targets}) == len(targets) >= 280
    assert len(HOSTILE) >= 560


@pytest.mark.parametrize(("target", "place"), HOSTILE)
def test_a_hostile_config_is_refused(target: Any, place: str, watch: list[str]) -> None:
    with pytest.raises(BadInput) as refused:
        build(PLACES[place](target), key="model")
    text = str(refused.value)
    assert "model" in text
    assert "_target_=" in text
    assert "\n" not in text
    if target not in LED_AWAY:
        assert not [name for name in watch if name.split(".")[0] not in ("torch", "lightning", "triform")]
        assert "outside what a config may name" in text or "is not the dotted name of a class" in text


@pytest.mark.parametrize("place", list(PLACES))
def test_nothing_is_imported_before_all_has_been_checked(place: str, watch: list[str]) -> None:
    config = {"first": {"_target_": "torch.nn.Linear", "_partial_": True}, "then": PLACES[place]("evil_module.Part")}
    with pytest.raises(BadInput, match="outside what a config may name"):
        build(config)
    assert watch == []


def test_a_module_that_is_there_to_be_found_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'evil')!r}, 'w')\nclass Part: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for target in ("evil_module.Part", "evil_module", "torch.nn.evil_module.Part", "triform.layers.evil_module.Part"):
        with pytest.raises(BadInput):
            build({"_target_": target})
    assert not (tmp_path / "evil").exists()
    assert "evil_module" not in sys.modules


def test_other_words_of_hydra_mean_nothing() -> None:
    for extra in ({"_recursive_": False}, {"_convert_": "all"}, {"_mode_": "call"}):
        with pytest.raises((BadInput, TypeError)):
            build({"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3, **extra})


SMALL = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)


def test_a_small_file_that_stands_for_a_huge_config_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(SMALL)
    with pytest.raises(BadInput, match=f"more than {MOST_NODES} values"):
        check_targets(read_mapping(file))


def test_a_config_that_holds_itself_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: &a\n  b: *a\n")
    with pytest.raises(BadInput, match=f"more than {MOST_NODES} values"):
        check_targets(read_mapping(file))


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system [id]\n",
        "a: !!python/name:os.system\n",
        "a: !!python/module:os\n",
        "a: !!python/object/new:type [X, [], {}]\n",
        "!!python/object/apply:builtins.eval ['1']\n",
        "a: !evil b\n",
        "a: " + "[" * 3000 + "\n",
        "\0",
        "- a\n",
    ],
)
def test_a_file_that_is_no_plain_yaml_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=str(file)):
        read_mapping(file)


SAMPLE = [
    "os.system",
    "builtins.eval",
    "torch.load",
    "torch.nn.modules.module.warnings.warn",
    "triform.run.job.run",
    "evil.X",
]


def run_folder(tmp_path: Path, target: str, place: str) -> Path:
    """As a run leaves it, but for one node."""
    from tests.training.runs import make

    folder = make(tmp_path, "decoder")
    config = folder.read_config()
    node: Any = config
    *sections, last = place.split(".")
    for section in sections:
        node = node[section]
    node[last] = {"_target_": target, "command": "touch evil"}
    folder.config.write_text(yaml.safe_dump(config))
    (folder.checkpoints / "best.ckpt").write_bytes(b"")
    return folder.path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder(tmp_path_factory.mktemp("run"), "os.system", "callbacks.x")


@pytest.mark.parametrize("place", ["model", "model.norm", "model.head", "task", "task.x"])
@pytest.mark.parametrize("target", SAMPLE)
def test_a_run_that_names_anything_else_is_not_loaded(run: Path, tmp_path: Path, target: str, place: str) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    kept = yaml.safe_dump(config)
    node: Any = config
    *sections, last = place.split(".")
    for section in sections:
        node = node[section]
    node[last] = {"_target_": target, "_partial_": True}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    try:
        for path in (run, run / "checkpoints" / "best.ckpt"):
            with pytest.raises(ValueError, match="may name"):
                triform.load(path)
    finally:
        (run / "config.yaml").write_text(kept)


def test_a_run_that_names_anything_else_does_not_go_on(run: Path) -> None:
    from triform.run.folder import RunFolder
    from triform.run.job import resume

    with pytest.raises(ValueError, match=r"callbacks\.x\._target_=os\.system is outside"):
        resume(RunFolder(run))


@pytest.mark.parametrize("target", SAMPLE)
def test_a_folder_of_the_hub_that_names_anything_else_is_not_loaded(tmp_path: Path, target: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "triform", "model": {"_target_": target}}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="may name"):
        triform.load(tmp_path)
