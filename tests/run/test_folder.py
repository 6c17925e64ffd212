import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from triform.run.check import check_writable
from triform.run.folder import create, resolve_run
from triform.run.values import check_name


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda n: create(tmp_path / "x", {"n": n}, []).path, range(64)))
    assert len(set(folders)) == 64
    assert all(" " not in folder.name and "=" not in folder.name for folder in folders)


def test_a_folder_that_exists_is_never_taken(tmp_path: Path) -> None:
    create(tmp_path, {}, [], "0")
    with pytest.raises(ValueError, match=r"paths\.outputs: cannot make the run folder .*File exists"):
        create(tmp_path, {}, [], "0")


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    config = {"name": "ä", "data": {"files": ["a", "b"], "n": None, "lr": 1e-9, "on": True}, "no": "no"}
    folder = create(tmp_path, config, ["a=b", "--config-dir=/x y"])
    assert folder.read_config() == config
    assert folder.overrides.read_text() == "- a=b\n- --config-dir=/x y\n"


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/best.ckpt", "checkpoints/best", "metrics.csv"])
def test_a_run_is_found_from_what_is_in_it(inside: str, tmp_path: Path) -> None:
    folder = create(tmp_path, {"seed": 0}, [])
    folder.metrics.touch()
    (folder.checkpoints / "best.ckpt").touch()
    assert resolve_run(folder.path / inside) == folder
    assert resolve_run(os.path.relpath(folder.path / inside)) == folder


def test_what_is_no_run_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    folder = create(tmp_path / "dates", {}, [], "2026-01-01_10-00-00_abcd")
    with pytest.raises(ValueError, match=r"no such run \(did you mean '2026-01-01_10-00-00_abcd'\?\)"):
        resolve_run(folder.path.with_name("2026-01-01_10-00-00_abce"))
    with pytest.raises(ValueError, match=r"no config\.yaml; it holds 1 runs, the latest is .*abcd"):
        resolve_run(tmp_path / "dates")


@pytest.mark.parametrize("name", ["..", "a/b", "a b", "a=b", "", ".hidden", "-x", "a\nb", "x" * 101, None, 3])
def test_names_that_leave_the_folder_or_trouble_a_shell_are_refused(name: object) -> None:
    with pytest.raises(ValueError, match="cannot name a folder; set name to"):
        check_name(name)


def test_a_folder_is_tried_without_leaving_a_trace(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b", "paths.outputs")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"paths\.cache=.* cannot be written to .*not a folder"):
        check_writable(tmp_path / "file" / "x", "paths.cache")
