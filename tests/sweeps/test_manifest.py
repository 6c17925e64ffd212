import json
import os
from pathlib import Path

import pytest

from triform.run.errors import BadInput
from triform.sweeps.manifest import Job, Manifest, SweepFolder, counted, find, held, is_driven


def made(path: Path) -> tuple[SweepFolder, Manifest]:
    folder = SweepFolder(path)
    jobs = [Job(0, ["seed=0"], ["seed=0", "name=é"], "finished", 1), Job(1, ["seed=1"], ["seed=1"], "failed", 2, "why")]
    manifest = Manifest(
        ["seed=0,1"], "abc", [], {"sampler": "grid"}, {"launcher": "local"}, {"name": "a", "mode": "min"}, jobs
    )
    path.mkdir(exist_ok=True)
    folder.write(manifest)
    return folder, manifest


def test_a_record_reads_back(tmp_path: Path) -> None:
    folder, manifest = made(tmp_path)
    assert folder.read() == manifest
    assert counted(manifest.jobs) == "1 finished, 1 failed"
    found = json.loads(folder.manifest.read_text())
    folder.manifest.write_text(json.dumps(found | {"of_a_later_version": 1}))
    assert folder.read() == manifest


def test_a_full_disk_leaves_the_record_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, manifest = made(tmp_path)
    before = folder.manifest.read_text()
    manifest.jobs[0].status = "running"

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    folder.write(manifest)
    assert folder.manifest.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.json"]


def test_only_one_drives(tmp_path: Path) -> None:
    folder, _ = made(tmp_path)
    assert not is_driven(folder)
    with held(folder):
        assert is_driven(folder)
        with pytest.raises(BadInput, match="another process is driving this sweep"), held(folder):
            pass
    assert not is_driven(folder)


def test_a_sweep_is_found_by_its_folder_or_a_run_of_it(tmp_path: Path) -> None:
    folder, _ = made(tmp_path / "sweep")
    (folder.path / "1").mkdir()
    assert find(folder.path).path == find(folder.path / "1").path == folder.path
    with pytest.raises(BadInput, match=r"no such sweep \(did you mean 'sweep'"):
        find(tmp_path / "swep")
    with pytest.raises(BadInput, match="is no sweep's folder"):
        find(tmp_path)
    folder.manifest.write_text("{")
    with pytest.raises(BadInput, match="is no record of a sweep"):
        folder.read()
