"""No secret is written, and nothing is written where it should not be."""

import ast
import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

import triform
from tests.run.tiny import TINY, TRAIN, environment, folder_of
from triform.run import releases
from triform.run.errors import one_line
from triform.run.folder import check_inside
from triform.run.releases import check_releases
from triform.run.secrets import check_secrets, check_typed
from triform.run.values import check_name
from triform.training.secrets import hidden

CANARY = "canary7f3e9b"
"""Part of every secret below; it is found in any file that has one of them."""
VARIABLES = {
    "WANDB_API_KEY": f"{CANARY}{'0a1b' * 7}",
    "HF_TOKEN": f"hf_{CANARY}abcdefgh",
    "AWS_SECRET_ACCESS_KEY": f"{CANARY}/aws+secret",
    "MY_PASSWORD": f"{CANARY}-password",
    "http_proxy": f"http://user:{CANARY}@127.0.0.1:9",
    "https_proxy": f"http://user:{CANARY}@127.0.0.1:9",
    "SOME_VARIABLE": f"{CANARY}-of-no-telling-name",
    "WANDB_MODE": "offline",
    "HF_HUB_OFFLINE": "1",
}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = (sys.executable, str(TRAIN), *TINY, "trainer.max_steps=2", "trainer.val_interval=2", *words)
    variables = {**environment(), **VARIABLES, "HOME": str(folder), "TMPDIR": str(folder)}
    variables["PYTHONPATH"] = os.pathsep.join([str(TRAIN.parent), variables.get("PYTHONPATH", "")])
    return subprocess.run(line, capture_output=True, text=True, cwd=folder, env=variables, timeout=200)


def holding(folder: Path) -> list[Path]:
    """Files that have the canary, in archives too."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file() or path.is_symlink():
            continue
        parts = [path.read_bytes(), str(path).encode()]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                parts += [archive.read(name) for name in archive.namelist()]
        if any(CANARY.encode() in part for part in parts):
            found.append(path)
    return found


def test_secrets_of_the_environment_are_in_no_file_of_a_run(tmp_path: Path) -> None:
    done = run(tmp_path, "logger=wandb", f"paths.cache={tmp_path / 'cache'}")
    assert done.returncode == 0, done.stderr
    folder = folder_of(done)
    assert list(folder.rglob("*.wandb")), "W&B has recorded"
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) > 15
    assert holding(tmp_path) == []
    assert CANARY not in done.stdout + done.stderr
    for path in tmp_path.rglob("*"):
        if path.suffix in (".ckpt", ".pt"):
            torch.load(path, weights_only=True)
        elif path.is_file():
            assert path.read_bytes()[:1] != b"\x80", f"{path} begins as a pickle does"


def raise_with_secrets() -> None:
    address = os.environ["http_proxy"]
    raise RuntimeError(f"ProxyError {address}: 401 for {os.environ['HF_TOKEN']}; https://host/x?token={CANARY}abc&n=2")


class Leaks(Callback):
    """Says what a library says of a request that failed."""

    def on_train_batch_start(self, *args: Any) -> None:
        print(f"asking {os.environ['http_proxy']}")
        raise_with_secrets()


def test_secrets_in_an_error_are_hidden_wherever_it_is_kept(tmp_path: Path) -> None:
    done = run(
        tmp_path, "trust=[tests]", f"+callbacks.x={{_target_: {__name__}.Leaks}}", "logger=csv", "traceback=false"
    )
    assert done.returncode == 1
    assert "ProxyError http://***@127.0.0.1:9: 401 for ***; https://host/x?token=***&n=2" in done.stderr
    (summary,) = tmp_path.rglob("summary.json")
    assert "ProxyError" in json.loads(summary.read_text())["error"]
    assert (summary.parent / "failure" / "rank0.json").exists()
    assert "ProxyError" in (summary.parent / "log.txt").read_text()
    assert "asking http://***@" in (summary.parent / "log.txt").read_text()
    assert holding(tmp_path) == []


TYPED = [
    f"+logger.api_key={CANARY}abc",
    f"++data.token={CANARY}",
    f"data.train_files=https://user:{CANARY}@host/file.txt",
    f"data.train_files=https://{CANARY}@host/file.txt",
    f"data.train_files=s3://key:{CANARY}@bucket/file",
    f"data.train_files=https://host/file.txt?X-Amz-Signature={CANARY}",
    f"data.train_files=[a.txt,'https://host/b?token={CANARY}']",
    "name=${oc.env:MY_PASSWORD}",
    "data.train_files=${oc.env:HF_TOKEN}",
]


@pytest.mark.slow
@pytest.mark.parametrize("word", TYPED)
@pytest.mark.parametrize("several", [False, True])
def test_secrets_that_are_typed_are_refused_and_left_nowhere(tmp_path: Path, word: str, several: bool) -> None:
    words = ["-m", "seed=0,1"] if several else []
    done = run(tmp_path, "data=text", word, *words)
    assert done.returncode == 2, done.stderr
    assert holding(tmp_path) == []
    assert CANARY not in done.stdout + done.stderr


@pytest.mark.slow
def test_secrets_of_the_environment_are_in_no_file_of_a_sweep(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "seed=0,1", "logger=wandb")
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.rglob("summary.json"))) == 2
    assert holding(tmp_path) == []


@pytest.mark.parametrize("word", [word for word in TYPED if "oc.env" not in word])
def test_a_typed_secret_is_refused_and_not_repeated(word: str) -> None:
    with pytest.raises(ValueError, match="would be written to the run's folder") as refused:
        check_typed(["seed=3", word])
    assert CANARY not in str(refused.value)
    assert word.lstrip("+").partition("=")[0] in str(refused.value)


def test_the_value_of_a_secret_variable_is_known_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_ACCESS_KEY", f"{CANARY}xyz")
    monkeypatch.setenv("PIN_PASSWORD", "1234")
    with pytest.raises(ValueError, match=r"data\.x: the value of a secret variable") as refused:
        check_secrets({"data": {"x": [f"a/{CANARY}xyz/b"]}})
    assert CANARY not in str(refused.value)
    check_secrets({"data": {"x": "1234"}})
    assert one_line(ValueError(f"no {CANARY}xyz here\n1234")) == "no *** here 1234"


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/a@b:c",
        "a token=b",
        "max_tokens=100",
        "git@host:repository",
        "https://host/x?n=3&page=token",
    ],
)
def test_what_only_resembles_a_secret_is_left(text: str) -> None:
    assert hidden(text) == text
    check_secrets({"x": text})


# Names


@pytest.mark.parametrize(
    "name",
    [
        *("..", ".", "", " ", "../x", "x/../..", "/etc/x", "~", "~root", "a/b", "a\\b", "..\\x", "x\0", "\0", "a\nb"),
        *("a\u2215b", "a\uff0fb", "a\u2044b", "\u2024\u2024", "..\u2215x", "\uff0e\uff0e", "a\u202eb", "\u00e4", "a b"),
        *("-rf", ".hidden", "$HOME", "${oc.env:HOME}", "`id`", "a;b", "a|b", "a=b", "a:b", "a*", "a" * 101, "con\r"),
        *(None, 3.5, [], {}, True),
    ],
)
def test_names_that_lead_elsewhere_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="cannot name a folder; set name to"):
        check_name(name)


def test_a_link_does_not_lead_out_of_the_outputs(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "outputs" / "x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"leads to .*elsewhere, out of paths\.outputs"):
        check_inside(tmp_path / "outputs" / "x", tmp_path / "outputs")
    (tmp_path / "outputs" / "y").symlink_to(tmp_path / "outputs" / "z")
    check_inside(tmp_path / "outputs" / "y", tmp_path / "outputs")
    (tmp_path / "link").symlink_to(tmp_path / "outputs")
    check_inside(tmp_path / "link" / "run", tmp_path / "link")


# Releases


def versions(monkeypatch: pytest.MonkeyPatch, **known: str) -> None:
    original = importlib.metadata.version
    monkeypatch.setattr(releases, "installed", lambda name: known.get(name.replace("-", "_")) or _there(original, name))
    check_releases.cache_clear()
    monkeypatch.setattr(releases, "check_releases", check_releases)


def _there(version: Any, name: str) -> str | None:
    try:
        return str(version(name))
    except importlib.metadata.PackageNotFoundError:
        return None


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"lightning": "2.6.2"}, r"lightning 2\.6\.2 is a release that runs somebody else's code"),
        ({"pytorch_lightning": "2.6.3"}, r"pytorch-lightning 2\.6\.3 is a release"),
        ({"lightning": "2.6.5"}, r"lightning 2\.6\.5 is installed, and triform needs lightning>=2\.6\.6"),
        ({"torch": "2.5.1"}, r"torch 2\.5\.1 is installed, and triform needs torch"),
        ({"hydra_core": "1.3.2"}, r"hydra-core 1\.3\.2 is installed"),
    ],
)
def test_releases_that_do_harm_are_refused(
    known: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions(monkeypatch, **known)
    with pytest.raises(ValueError, match=message):
        check_releases()
    check_releases.cache_clear()


def test_what_is_installed_here_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch)
    check_releases()


# The source

SOURCE = sorted(Path(triform.__file__).parent.rglob("*.py"))
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
OF_PICKLES = {
    "training/sealed.py": "the error that torch.load raises",
    "sweeps/optuna.py": "an unpickler that knows six names, before Optuna reads its own journal",
}


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """Every call with the dotted name of what is called."""
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def faults(text: str) -> list[str]:
    """What source does that may run what it reads."""
    found = []
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"imports {name}" for name in names if name.partition(".")[0] in PICKLES]
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            found.append("trust_remote_code")
        if (
            isinstance(node, ast.keyword)
            and node.arg in ("allow_pickle", "shell")
            and ast.unparse(node.value) != "False"
        ):
            found.append(f"{node.arg}=True")
    for name, call in calls(tree):
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if name in ("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "os.system", "os.popen"):
            found.append(name)
        if name in ("yaml.load", "yaml.load_all") and keywords.get("Loader") not in ("_YAML", "yaml.SafeLoader"):
            found.append(name)
        if name in (
            "yaml.unsafe_load",
            "yaml.full_load",
            "torch.hub.load",
            "torch.jit.load",
            "pickle.loads",
            "pickle.load",
        ):
            found.append(name)
        if name == "torch.load" and keywords.get("weights_only") != "True":
            found.append(name)
        if name.endswith(("load_from_checkpoint", "hydra.utils.instantiate")) or name == "instantiate":
            found.append(name)
    return found


@pytest.mark.parametrize("file", SOURCE, ids=[str(file.relative_to(Path(triform.__file__).parent)) for file in SOURCE])
def test_nothing_in_the_source_runs_what_it_reads(file: Path) -> None:
    own = str(file.relative_to(Path(triform.__file__).parent))
    found = [fault for fault in faults(file.read_text()) if not (own in OF_PICKLES and fault == "imports pickle")]
    assert found == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import pickle", "imports pickle"),
        ("from dill import loads", "imports dill"),
        ("torch.load(x)", "torch.load"),
        ("torch.load(x, weights_only=False)", "torch.load"),
        ("yaml.load(x, Loader=yaml.Loader)", "yaml.load"),
        ("AutoModel.from_pretrained(x, trust_remote_code=False)", "trust_remote_code"),
        ("eval('1')", "eval"),
        ("np.load(x, allow_pickle=True)", "allow_pickle=True"),
        ("subprocess.run(x, shell=True)", "shell=True"),
    ],
)
def test_the_reader_of_source_sees(text: str, fault: str) -> None:
    assert fault in faults(text)


def test_the_reader_of_source_lets_pass() -> None:
    assert faults("model.eval()\ntorch.load(x, weights_only=True)\nyaml.safe_load(x)\nre.compile(x)") == []


def test_lists_of_exceptions_are_used() -> None:
    root = Path(triform.__file__).parent
    assert all("imports pickle" in faults((root / name).read_text()) for name in OF_PICKLES)
