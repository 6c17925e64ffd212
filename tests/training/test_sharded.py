"""Folders of parts: put together on the CPU from what any number of ranks hold."""

import hashlib
import json
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from triform.layers.parallel import Piece
from triform.run.ranks import launch
from triform.training import sharded
from triform.training.meeting import Meeting
from triform.training.saving import (
    BEST,
    LAST,
    PREVIOUS,
    NotSaved,
    copied,
    n_bytes,
    newest,
    read_checkpoint,
    save,
    save_parts,
    sweep,
)
from triform.training.sharded import MANIFEST, check_parts, commit, split, write_part


def content(rank: int, step: int) -> dict[str, Any]:
    """A checkpoint of two ranks: tensors cut by rows, unequally, and by columns; one tied; one that both hold."""
    generator = torch.Generator().manual_seed(step)
    table, columns, same = (torch.randn(size, generator=generator) for size in ((5, 3), (2, 6), (4,)))
    rows = slice(0, 3) if rank == 0 else slice(3, 5)
    part = Piece(table[rows].clone(), (rows.start, 0), (5, 3), True)
    return {
        "state_dict": {
            "model.embedding": part,
            "model.head": part,
            "model.wide": Piece(columns[:, 3 * rank : 3 * rank + 3].clone(), (0, 3 * rank), (2, 6), True),
            "model.same": Piece(same.clone(), (0,), (4,), rank == 0),
            "model.small": Piece(torch.ones(1 - rank, 2), (rank, 0), (1, 2), True),  # nothing of it is left for rank 1
        },
        "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"betas": (0.9, 0.95)}]}],
        "progress": {"step": step},
    }


def whole(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    table, columns, same = (torch.randn(size, generator=generator) for size in ((5, 3), (2, 6), (4,)))
    model = {"embedding": table, "head": table, "wide": columns, "same": same, "small": torch.ones(1, 2)}
    return {f"model.{name}": value for name, value in model.items()}


def write(folder: Path, step: int, best: bool = False) -> None:
    """Both ranks, beside each other."""
    other = threading.Thread(target=save_parts, args=(content(1, step), folder / LAST, best, 1, 2, step))
    other.start()
    save_parts(content(0, step), folder / LAST, best, 0, 2, step)
    other.join()


def assert_is(path: Path, step: int) -> None:
    found = read_checkpoint(path)
    assert found["state_dict"].keys() == whole(step).keys()
    for name, value in whole(step).items():
        assert torch.equal(found["state_dict"][name], value), name
    assert found["state_dict"]["model.head"].data_ptr() == found["state_dict"]["model.embedding"].data_ptr()
    assert found["optimizer_states"] == content(0, step)["optimizer_states"]
    assert found["progress"] == {"step": step}


def test_parts_are_put_together(tmp_path: Path) -> None:
    for step in range(1, 5):
        write(tmp_path, step, best=step == 2)
    assert newest(tmp_path) == tmp_path / LAST
    for name, step in ((BEST, 2), (PREVIOUS, 3), (LAST, 4)):
        assert_is(tmp_path / name, step)
    links = {entry.name for entry in tmp_path.iterdir() if entry.is_symlink()}
    folders = {entry.name for entry in tmp_path.iterdir() if not entry.is_symlink()}
    assert links == {BEST, PREVIOUS, LAST}
    assert folders == {os.readlink(tmp_path / name) for name in links}, "what no name means is gone"
    assert sorted(entry.name for entry in (tmp_path / LAST).iterdir()) == [
        *("manifest.json", "part-00000.safetensors", "part-00001.safetensors", "rest.ckpt")
    ]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # which is meant
def test_dcp_reads_the_parts(tmp_path: Path) -> None:
    write(tmp_path, 7)
    wanted = {name: torch.zeros_like(value) for name, value in whole(7).items() if name != "model.head"}
    given = {f"state_dict.{name}": value for name, value in wanted.items()}
    dcp.load(given, storage_reader=HuggingFaceStorageReader(str(tmp_path / LAST)), no_dist=True)
    for name, value in wanted.items():
        assert torch.equal(value, whole(7)[name]), name


def test_a_file_takes_the_place_of_a_folder_and_a_folder_of_a_file(tmp_path: Path) -> None:
    save({"state_dict": {"w": torch.ones(3)}, "progress": {"step": 1}}, tmp_path / LAST, True)
    write(tmp_path, 2)
    assert_is(tmp_path / LAST, 2)
    assert read_checkpoint(tmp_path / PREVIOUS)["progress"]["step"] == 1
    save({"state_dict": {"w": torch.ones(3)}, "progress": {"step": 3}}, tmp_path / LAST, False)
    assert_is(tmp_path / PREVIOUS, 2)
    assert read_checkpoint(tmp_path / LAST)["progress"]["step"] == 3


def test_any_damage_to_any_file_is_found(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    draw = random.Random(0)
    for path in sorted((tmp_path / LAST).iterdir()):
        data = path.read_bytes()
        for bit in draw.sample(range(8 * len(data)), 40):
            broken = bytearray(data)
            broken[bit // 8] ^= 1 << bit % 8
            path.write_bytes(broken)
            with pytest.raises(ValueError, match="cannot be read"):
                check_parts(tmp_path / LAST)
        for size in draw.sample(range(len(data)), 10):
            path.write_bytes(data[:size])
            with pytest.raises(ValueError, match="cannot be read"):
                check_parts(tmp_path / LAST)
        path.unlink()
        with pytest.raises(ValueError, match="cannot be read"):
            read_checkpoint(tmp_path / LAST)
        assert newest(tmp_path) == tmp_path / PREVIOUS
        path.write_bytes(data)
    assert newest(tmp_path) == tmp_path / LAST


def test_a_folder_that_has_gone_is_no_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    (tmp_path / os.readlink(tmp_path / LAST)).rename(tmp_path / "elsewhere")
    assert newest(tmp_path) == tmp_path / PREVIOUS


def test_a_manifest_names_no_file_outside(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = tmp_path / LAST / MANIFEST
    text = path.read_text().rpartition("\n")[0].replace("part-00001", "../part-00001")
    path.write_text(text + "\n" + hashlib.sha256(text.encode()).hexdigest())
    with pytest.raises(ValueError, match="names files outside its folder"):
        check_parts(tmp_path / LAST)


def test_a_rank_that_fails_or_dies_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("triform.training.sharded.save_file", full)
        with pytest.raises(NotSaved, match=r"No space left on device\): it needs 68 bytes"):
            save_parts(content(1, 2), tmp_path / LAST, False, 1, 2, 2)
    with pytest.raises(NotSaved, match=r"rank 1: No space left on device"):
        save_parts(content(0, 2), tmp_path / LAST, False, 0, 2, 2)
    assert_is(tmp_path / LAST, 1)
    assert not list(tmp_path.glob(".*"))
    rest, pieces = split(content(0, 3))
    aside = tmp_path / ".last.ckpt.parts.3"
    aside.mkdir()
    write_part(pieces, aside, 0)
    with pytest.raises(OSError, match="rank 1 has not written its part in 0 seconds"):
        commit(rest, aside, 2, 3, wait_seconds=0.1)
    sweep(tmp_path)
    assert not aside.exists()
    assert_is(tmp_path / LAST, 1)


def test_parts_that_make_no_whole_are_refused(tmp_path: Path) -> None:
    rest, pieces = split(content(0, 1))
    aside = tmp_path / ".last.ckpt.parts.1"
    aside.mkdir()
    write_part(pieces, aside, 0)
    folder = commit(rest, aside, 1, 1)
    with pytest.raises(ValueError, match=r"lacks 6 numbers of state_dict\.model\.embedding"):
        read_checkpoint(folder)
    assert json.loads((folder / MANIFEST).read_text().rpartition("\n")[0])["step"] == 1


def test_each_rank_reads_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 3)
    opened: list[str] = []
    original = sharded.safe_open
    monkeypatch.setattr(sharded, "safe_open", lambda path, kind: opened.append(path.name) or original(path, kind))
    for rank in range(2):
        found = read_checkpoint(tmp_path / LAST, rank)["state_dict"]
        opened.clear()
        for name in ("model.embedding", "model.head", "model.wide"):
            piece = content(rank, 3)["state_dict"][name]
            assert found[name].shape == whole(3)[name].shape
            box = tuple(slice(o, o + n) for o, n in zip(piece.offset, piece.tensor.shape, strict=True))
            assert torch.equal(found[name][box], piece.tensor)
        assert opened == [f"part-{rank:05d}.safetensors"], "its own one, once"
        assert torch.equal(found["model.same"][(slice(1, 4),)], whole(3)["model.same"][1:4])
    assert opened == ["part-00001.safetensors", "part-00000.safetensors"]


def test_any_box_can_be_read(tmp_path: Path) -> None:
    write(tmp_path, 3)
    found = read_checkpoint(tmp_path / LAST, 1)["state_dict"]
    for name in ("model.embedding", "model.wide"):
        rows, columns = whole(3)[name].shape
        for top, bottom, left, right in product(*(range(n + 1) for n in (rows, rows, columns, columns))):
            if top <= bottom and left <= right:
                box = (slice(top, bottom), slice(left, right))
                assert torch.equal(found[name][box], whole(3)[name][box])


class Two(Meeting):
    """Two ranks that are threads."""

    def __init__(self, rank: int, said: dict[int, str], barrier: threading.Barrier) -> None:
        super().__init__(1, timedelta(0))
        self.rank, self.ranks, self.said, self.barrier = rank, 2, said, barrier

    def told(self, own: str) -> list[str]:
        self.said[self.rank] = own
        self.barrier.wait()
        of_all = [self.said[0], self.said[1]]
        self.barrier.wait()
        return of_all


def test_ranks_find_damage_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each looks at some of the files, and both go on from the same checkpoint."""
    write(tmp_path, 1)
    write(tmp_path, 2)
    hashed: list[str] = []
    original = sharded._facts
    monkeypatch.setattr(sharded, "_facts", lambda path: hashed.append(path.name) or original(path))

    def both() -> list[Path | None]:
        said, barrier = dict[int, str](), threading.Barrier(2, timeout=60)
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda rank: newest(tmp_path, Two(rank, said, barrier)), range(2)))

    assert both() == [tmp_path / LAST] * 2
    assert sorted(hashed) == ["part-00000.safetensors", "part-00001.safetensors", "rest.ckpt"], "each file once"
    for path in sorted((tmp_path / LAST).iterdir()):
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        assert both() == [tmp_path / PREVIOUS] * 2, path.name
        path.write_bytes(data)
    assert both() == [tmp_path / LAST] * 2


def meet(folder: Path) -> int:
    """One rank's part of a meeting before, and beside, a process group."""
    meeting = Meeting(2, timedelta(seconds=60))
    first = meeting.told(f"first of {meeting.rank}")
    dist.init_process_group("gloo")
    second = meeting.told(f"second of {meeting.rank}")
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps([first, second]))
    dist.destroy_process_group()
    return 0


def test_ranks_meet_before_their_process_group_is_there(tmp_path: Path) -> None:
    assert launch(2, meet, (tmp_path,)) == 0
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == [["first of 0", "first of 1"], ["second of 0", "second of 1"]]


def test_a_copy_of_pieces_is_as_large_as_what_the_rank_holds() -> None:
    given = content(0, 1)
    copy = copied(given)
    assert n_bytes(copy) == n_bytes(given) == 4 * (9 + 6 + 4 + 2 + 1)
    given["state_dict"]["model.wide"].tensor.zero_()
    assert copy["state_dict"]["model.wide"].tensor.any()
    assert copy["state_dict"]["model.head"].tensor.data_ptr() == copy["state_dict"]["model.embedding"].tensor.data_ptr()
