"""What a run notes about its machine, and what it must not."""

import getpass
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from triform.training.environment import environment, git


def test_environment_is_plain_json_with_versions_and_hardware() -> None:
    found = json.loads(json.dumps(environment(seed=7)))
    assert found["seed"] == 7
    assert found["threads"]["torch"] == 1
    assert found["hardware"]["cores"] >= 1
    assert found["hardware"]["memory_bytes"] > 2**28
    assert all(found["versions"][name] for name in ("triform", "torch", "lightning", "hydra-core"))


def test_environment_tells_nothing_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORM_TEST_TOKEN", "s3cr3t-value")
    text = json.dumps(environment(seed=0))
    assert "s3cr3t-value" not in text
    words = set(text.replace('"', " ").split())
    assert socket.gethostname() not in words
    assert getpass.getuser() not in words
    assert os.path.expanduser("~") not in text


def test_git_gives_commit_and_whether_tracked_files_changed(tmp_path: Path) -> None:
    assert git(tmp_path) is None
    file = tmp_path / "file"

    def run(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    run("init")
    assert git(tmp_path) is None, "no commit yet"
    file.write_text("a")
    run("add", "file")
    run("commit", "-m", "first")
    (tmp_path / "untracked").write_text("")
    state = git(tmp_path)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    file.write_text("b")
    assert git(tmp_path) == {"commit": state["commit"], "dirty": True}
