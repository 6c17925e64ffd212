import io
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from triform.training.sealed import HEX, check, check_seal, read_sealed, write_sealed


def content() -> dict[str, Any]:
    shared = torch.arange(7.0)
    return {"state_dict": {"a": shared, "b": shared[2:5], "c": torch.randn(3, 5)}, "progress": {"step": 11}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_sealed(content(), tmp_path / "x.ckpt")
    return tmp_path / "x.ckpt"


def is_whole(data: bytes) -> bool:
    try:
        check_seal(io.BytesIO(data), Path("x.ckpt"))
    except ValueError:
        return False
    return True


def test_a_sealed_file_is_one_that_torch_and_zip_read(file: Path) -> None:
    found, plain = read_sealed(file), torch.load(file, weights_only=True)
    for name, value in plain["state_dict"].items():
        assert torch.equal(found["state_dict"][name], value)
    assert found["progress"] == {"step": 11}
    assert found["state_dict"]["a"].data_ptr() + 8 == found["state_dict"]["b"].data_ptr()
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.comment[:-HEX] == b'triform checkpoint 1 {"step": 11} '


def test_any_flipped_bit_is_found(file: Path) -> None:
    whole = file.read_bytes()
    assert is_whole(whole)
    draw = random.Random(0)
    bits = {*range(8 * (len(whole) - 200), 8 * len(whole)), *draw.sample(range(8 * len(whole)), 2000)}
    for bit in bits:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        assert not is_whole(bytes(data)), f"bit {bit} of {8 * len(whole)}"


def test_any_cut_is_found(file: Path) -> None:
    whole = file.read_bytes()
    for size in range(len(whole)):
        assert not is_whole(whole[:size]), f"{size} of {len(whole)} bytes"
    assert not is_whole(whole + b"\0")


def test_torch_alone_would_not_notice_a_bit_in_a_tensor(tmp_path: Path) -> None:
    """Why there is a hash."""
    path = tmp_path / "x.ckpt"
    write_sealed({"state_dict": {"w": torch.ones(5000)}}, path)
    data = bytearray(path.read_bytes())
    data[data.index(b"\x00\x00\x80\x3f" * 9) + 2000] ^= 1
    path.write_bytes(bytes(data))
    assert not torch.equal(torch.load(path, weights_only=True)["state_dict"]["w"], torch.ones(5000))
    with pytest.raises(ValueError, match=r"x\.ckpt cannot be read: its content is not what its hash says"):
        read_sealed(path)
    with pytest.raises(ValueError, match="its hash says"):
        check(path)


class Harmful:
    """An object that a checkpoint must not bring to life."""

    def __reduce__(self) -> tuple:
        return (print, ("unpickled",))


def test_objects_in_a_file_are_refused_not_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sealed({"state_dict": Harmful()}, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match="it holds more than weights and numbers"):
        read_sealed(tmp_path / "x.ckpt")
    assert "unpickled" not in capsys.readouterr().out


def test_what_cannot_be_opened_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.ckpt does not exist; the run stopped before its first checkpoint"):
        read_sealed(tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=r"cannot be read \(.*directory"):
        read_sealed(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\)"):
        check(tmp_path)
