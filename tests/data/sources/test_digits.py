from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from triform.data.prepare import prepare
from triform.data.sources.digits import Digits
from triform.data.tokenizers import Byte


def test_every_digit_is_in_one_split(tmp_path: Path) -> None:
    prepared = prepare(Digits(180, 360, 0), Byte(), tmp_path, progress=False)
    assert {name: len(split) for name, split in prepared.splits.items()} == {
        "train": 1257,
        "validation": 180,
        "test": 360,
    }
    assert prepared.labels == [str(digit) for digit in range(10)]
    found = sorted(
        (split[i]["label"], split[i]["pixels"].tobytes())
        for split in prepared.splits.values()
        for i in range(len(split))
    )
    images, labels = load_digits(return_X_y=True)
    scaled = np.rint(images * 255 / 16).astype(np.uint8)
    assert found == sorted((int(label), image.tobytes()) for label, image in zip(labels, scaled, strict=True))
    assert prepared.splits["train"][0]["pixels"].shape == (1, 8, 8)


def test_a_split_without_images_is_refused() -> None:
    with pytest.raises(ValueError, match=r"n_validation, n_test=\(797, 1000\) .* change data\.n_validation"):
        Digits(797, 1000, 0)
