"""Images of your own, in a folder for each class."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from triform.data.sources.base import Kind, Row, digest
from triform.data.sources.files import check_fraction, content_hash

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FITS = ("crop", "stretch")
MODES = {1: "L", 3: "RGB"}
"""Channels -> PIL's name of such an image."""


class Place(NamedTuple):
    """Where an image is from, for messages."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclasses.dataclass(frozen=True)
class ImageFolders:
    """Images as equal squares of pixels, each labelled with the name of the folder it is in.

    An image is turned as its camera says (EXIF), put on white where it is transparent, and scaled (bicubic). Of one
    that moves the first picture is read; 16 bits of grey become 8.

    Args:
        train_files: a folder with a folder of images for each class.
        validation_files: the same; None: a share of the training images.
        test_files: the same; None: there is no test split.
        validation_fraction: that share of distinct images, chosen by a hash of their pixels.
        image_size: height and width that all get, pixels.
        channels: 3: coloured; 1: grey.
        fit: how an image becomes a square: "crop": its shorter side is scaled, of the longer one the middle kept;
            "stretch": both sides are scaled.

    Raises:
        ValueError: a number or name that means nothing. `check`: Pillow is not installed, or a folder has no images by
            class. `load`: an image cannot be read.
    """

    train_files: str | None
    validation_files: str | None
    test_files: str | None
    validation_fraction: float
    image_size: int
    channels: int
    fit: str

    kind: ClassVar[Kind] = "images"

    def __post_init__(self) -> None:
        check_fraction("ImageFolders", self.validation_fraction)
        if self.image_size < 1:
            raise ValueError(f"ImageFolders: image_size={self.image_size} is no size; set data.image_size to 1 or more")
        if self.channels not in MODES:
            raise ValueError(
                f"ImageFolders: channels={self.channels} is neither grey nor coloured; set data.channels to 1 or 3"
            )
        if self.fit not in FITS:
            raise ValueError(f"ImageFolders: fit={self.fit!r} is unknown; set data.fit to {' or '.join(FITS)}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of each image: channels, height, width."""
        return self.channels, self.image_size, self.image_size

    @classmethod
    def shape_of(cls, config: Mapping[str, Any]) -> tuple[int, int, int]:
        """The same of what a config's arguments would build."""
        return config["channels"], config["image_size"], config["image_size"]

    def check(self) -> None:
        if find_spec("PIL") is None:
            raise ValueError(
                "ImageFolders: Pillow, which reads images, is not installed; install it with: pip install "
                "'triform[images]'"
            )
        self._splits()

    def fingerprint(self) -> str:
        settings = f"{self.validation_fraction} {self.shape} {self.fit}"
        own = [
            f"{name} {path.parent.name} {content_hash(path)}"
            for name, paths in self._splits().items()
            for path in paths
        ]
        return digest([settings, Path(__file__).read_bytes(), *own])

    def files(self) -> list[Path]:
        return list(dict.fromkeys(path for paths in self._splits().values() for path in paths))

    def load(self) -> Mapping[str, Iterator[Row]]:
        return {name: self._read(paths) for name, paths in self._splits().items()}

    def _read(self, paths: list[Path]) -> Iterator[Row]:
        for path in paths:
            yield {"pixels": self.pixels(path), "label": path.parent.name, "place": Place(str(path))}

    def _splits(self) -> dict[str, list[Path]]:
        given = {"train": self.train_files, "validation": self.validation_files, "test": self.test_files}
        return {
            name: images_by_class(folder, f"data.{name}_files")
            for name, folder in given.items()
            if folder or name == "train"
        }

    def pixels(self, path: Path) -> np.ndarray:
        """Of the image in a file: (channels, height, width), from 0 to 255.

        Raises:
            ValueError: it cannot be read.
        """
        from PIL import Image

        try:
            with Image.open(path) as image:
                square = self._square(_plain(image, MODES[self.channels]))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ValueError(f"{path} cannot be read as an image ({reason}); mend it or take it out") from None
        return np.asarray(square, dtype=np.uint8).reshape(self.image_size, self.image_size, -1).transpose(2, 0, 1)

    def _square(self, image: "Image") -> "Image":
        from PIL import Image, ImageOps

        size = (self.image_size, self.image_size)
        if self.fit == "stretch":
            return image.resize(size, Image.Resampling.BICUBIC)
        return ImageOps.fit(image, size, Image.Resampling.BICUBIC)


def images_by_class(folder: str | None, key: str) -> list[Path]:
    """The images in the folders of a folder, in order of name.

    Args:
        key: that set `folder`, such as "data.train_files".

    Raises:
        ValueError: there is no such folder, or none of images in it.
    """
    if not isinstance(folder, str) or not folder:
        raise ValueError(f"{key}={folder} is no folder; name one that has a folder of images for each class")
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ValueError(f"{key}={folder} is no folder; name one that has a folder of images for each class")
    classes = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    found: list[Path] = []
    for of_class in classes:
        files = sorted(path for path in of_class.iterdir() if path.is_file() and not path.name.startswith("."))
        images = [path for path in files if path.suffix.lower() in ENDINGS]
        if not images:
            other = f", only others, such as {files[0].name}" if files else ""
            raise ValueError(
                f"{key}: {of_class} has no file that ends in {', '.join(ENDINGS)}{other}; add images of this class, or "
                "take the folder out"
            )
        if len(images) < len(files):
            log.warning(
                "%s: %d of %d files are no images and are left out", of_class, len(files) - len(images), len(files)
            )
        found += images
    if not found:
        raise ValueError(f"{key}={folder} has no folders; make one for each class, named after it, with its images")
    return found


def _plain(image: "Image", mode: str) -> "Image":
    """An image upright, opaque, of 8 bits a channel.

    Raises:
        ValueError: its numbers have no known brightest.
    """
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # which `convert` would cut off at 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert(mode)
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are of {image.mode}, numbers whose brightest is not known")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert(mode)
