"""Folders of images, as cameras and programs leave them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from triform.data.prepare import Prepared, prepare
from triform.data.sources.images import ImageFolders
from triform.data.tokenizers import Byte


def source(folder: Path, **changes: Any) -> ImageFolders:
    settings: dict[str, Any] = {
        "train_files": str(folder),
        "validation_files": None,
        "test_files": None,
        "validation_fraction": 0.25,
        "image_size": 4,
        "channels": 3,
        "fit": "crop",
    }
    return ImageFolders(**settings | changes)


def save(path: Path, pixels: Any, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(path, **how)
    return path


def flat(height: int, width: int, *colour: int) -> np.ndarray:
    return np.broadcast_to(np.array(colour, dtype=np.uint8), (height, width, len(colour)))


def made(folder: Path, **changes: Any) -> Prepared:
    return prepare(source(folder, **changes), Byte(), folder.parent / "cache", progress=False)


def test_classes_are_folders(tmp_path: Path) -> None:
    for i in range(8):
        save(tmp_path / "a" / "red" / f"{i}.png", flat(4, 4, 100 + i, 0, 0))
        save(tmp_path / "a" / "blue" / f"{i}.PNG", flat(4, 4, 0, 0, 100 + i))
    prepared = made(tmp_path / "a")
    assert prepared.labels == ["blue", "red"]
    assert {name: len(split) for name, split in prepared.splits.items()} == {"train": 12, "validation": 4}
    for split in pickle.loads(pickle.dumps(prepared)).splits.values():
        for example in (split[i] for i in range(len(split))):
            red, _, blue = example["pixels"][:, 0, 0].tolist()
            assert example["label"] == int(red > blue)
            np.testing.assert_array_equal(example["pixels"], example["pixels"][:, :1, :1].repeat(4, 1).repeat(4, 2))


def test_equal_images_are_held_out_together(tmp_path: Path) -> None:
    for i in range(24):
        save(tmp_path / "a" / "xy"[i % 2] / f"{i}.png", flat(4, 4, i // 4, i % 2, 0))
    splits = made(tmp_path / "a").splits
    seen = [{split[i]["pixels"].tobytes() for i in range(len(split))} for split in splits.values()]
    assert not seen[0] & seen[1]


def test_how_an_image_becomes_a_square(tmp_path: Path) -> None:
    """Of a wide image whose thirds are black, grey and white the middle is grey."""
    wide = np.repeat(np.array([0, 128, 255], dtype=np.uint8), 4)[None].repeat(4, 0)
    path = save(tmp_path / "wide.png", wide)
    assert source(tmp_path, channels=1).pixels(path).tolist() == [[[128] * 4] * 4]
    stretched = source(tmp_path, channels=1, fit="stretch").pixels(path)[0]
    assert stretched[0, 0] < 20
    assert stretched[0, 3] > 235


def test_images_are_read_as_they_are_seen(tmp_path: Path) -> None:
    """Turned, transparent, of a palette, of 16 bits, moving."""
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to the right
    half = np.zeros((4, 4, 3), dtype=np.uint8)
    half[:, :2] = 255  # white on the left is above once it is turned
    turned = source(tmp_path).pixels(save(tmp_path / "turned.png", half, exif=exif))
    assert turned[0].tolist() == [[255] * 4] * 2 + [[0] * 4] * 2
    glass = source(tmp_path).pixels(save(tmp_path / "glass.png", flat(4, 4, 9, 9, 9, 0)))
    assert glass.tolist() == [[[255] * 4] * 4] * 3
    deep = save(tmp_path / "deep.png", np.full((4, 4), 40000, dtype=np.uint16))
    assert source(tmp_path, channels=1).pixels(deep).tolist() == [[[40000 // 256] * 4] * 4]
    red = Image.fromarray(flat(4, 4, 200, 0, 0)).convert("P", palette=Image.Palette.ADAPTIVE)
    red.save(tmp_path / "moving.gif", save_all=True, append_images=[Image.fromarray(flat(4, 4, 0, 0, 200))])
    assert source(tmp_path).pixels(tmp_path / "moving.gif")[:, 0, 0].tolist() == [200, 0, 0]


def test_what_is_no_image_is_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path / "a" / "x" / "cut.png", np.random.default_rng(0).integers(0, 255, (32, 32), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"cut\.png cannot be read as an image \(.+\); mend it or take it out"):
        source(tmp_path / "a").pixels(path)
    path.write_text("no image")
    with pytest.raises(ValueError, match=r"cut\.png cannot be read as an image"):
        made(tmp_path / "a")
    floats = tmp_path / "floats.tiff"
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(floats)
    with pytest.raises(ValueError, match=r"floats\.tiff .*pixels are of F, numbers whose brightest is not known"):
        source(tmp_path).pixels(floats)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match=r"data\.train_files=None is no folder"):
        source(tmp_path, train_files=None).check()
    with pytest.raises(ValueError, match=r"data\.train_files=.* has no folders; make one for each class"):
        source(tmp_path).check()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"a has no file that ends in .*only others, such as notes\.txt; add images"):
        source(tmp_path).check()
    save(tmp_path / "a" / "1.png", flat(4, 4, 1, 2, 3))
    source(tmp_path).check()
    assert "1 of 2 files are no images and are left out" in caplog.text
    for change, said in (
        ({"fit": "pad"}, r"fit='pad' is unknown; set data\.fit to crop or stretch"),
        ({"channels": 4}, r"channels=4 .*set data\.channels to 1 or 3"),
        ({"image_size": 0}, r"image_size=0 .*set data\.image_size to 1 or more"),
    ):
        with pytest.raises(ValueError, match=said):
            source(tmp_path, **change)
