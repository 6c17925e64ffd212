"""Handwritten digits of 8 x 8 pixels that come with scikit-learn: images without a download."""

import dataclasses
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from triform.data.sources.base import Kind, Row, digest

N_IMAGES = 1797
BRIGHTEST = 16


@dataclasses.dataclass(frozen=True)
class Digits:
    """The test set of Alpaydin and Kaynak 1998 (https://archive.ics.uci.edu/dataset/80), 1797 digits of 13 writers.

    Cut at random, not by writer, which scikit-learn's copy does not name; the classes are about equally frequent.

    Args:
        n_validation: images held out and looked at while training.
        n_test: images held out for the end; the rest is learned from.
        seed: of the cut; not the run's seed, so that all runs see the same splits.

    Raises:
        ValueError: a split would be empty. `check`: scikit-learn is not installed.
    """

    n_validation: int
    n_test: int
    seed: int

    kind: ClassVar[Kind] = "images"
    shape: ClassVar[tuple[int, int, int]] = (1, 8, 8)

    def __post_init__(self) -> None:
        counts = (self.n_validation, self.n_test)
        if min(counts) < 1 or sum(counts) >= N_IMAGES:
            raise ValueError(
                f"Digits: n_validation, n_test={counts} must each be at least 1 and leave some of {N_IMAGES} images to "
                "learn from; change data.n_validation or data.n_test"
            )

    @classmethod
    def shape_of(cls, config: Mapping[str, Any]) -> tuple[int, int, int]:
        """Channels, height and width of what a config's arguments would give."""
        return cls.shape

    def check(self) -> None:
        if find_spec("sklearn") is None:
            raise ValueError(
                "Digits: scikit-learn, which has them, is not installed; install it with: pip install 'triform[images]'"
            )

    def fingerprint(self) -> str:
        return digest([repr(self), Path(__file__).read_bytes()])

    def files(self) -> list[Path]:
        return []

    def load(self) -> dict[str, Iterator[Row]]:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        pixels = np.rint(images * (255 / BRIGHTEST)).astype(np.uint8).reshape(-1, *self.shape)
        order = np.random.default_rng(self.seed).permutation(len(pixels))
        test, validation, train = np.split(order, [self.n_test, self.n_test + self.n_validation])
        splits = {"train": train, "validation": validation, "test": test}
        return {
            name: ({"pixels": pixels[i], "label": str(labels[i])} for i in chosen) for name, chosen in splits.items()
        }
