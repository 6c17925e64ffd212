from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from triform.layers.patches import PatchEmbedding
from triform.models.heads import ClassificationHead
from triform.tasks.figures import Figures
from triform.tasks.image_classification import ImageClassification


def build(**changes: Any) -> ImageClassification:
    settings: dict[str, Any] = {
        "label_smoothing": 0.0,
        "class_weights": None,
        "pooling": "first",
        "dropout": 0.0,
        "shift": 0,
        "flip": False,
        "family": "encoder",
        "tokenizer": None,
        "labels": ("a", "b", "c"),
        "seq_len": 5,
        "seed": 3,
    }
    return ImageClassification(**settings | changes)


PIXELS = np.arange(2 * 4 * 6, dtype=np.uint8).reshape(2, 4, 6)


class Sees(nn.Module):
    """Of an image its first value, then three times its last."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.embedding = self

    def blank(self, seq_len: int) -> torch.Tensor:
        return torch.zeros(1, 2, 4, 6)

    def forward(self, images: torch.Tensor) -> "Sees":
        flat = images.flatten(1)
        self.hidden = torch.stack([flat[:, 0], *[flat[:, -1]] * 3], 1)[..., None] * self.scale
        return self

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot((hidden[:, 0] > 0).long(), 3).float()


def test_pixels_are_read_from_minus_one_to_one() -> None:
    pixels = np.zeros((2, 4, 6), dtype=np.uint8)
    pixels[-1, -1, -1] = 255
    batch = build().collate([{"pixels": pixels, "label": 2}], [(0, 0)])
    assert (batch["n_tokens"], batch["n_targets"], batch["labels"].tolist()) == (5, 1, [2])
    assert build().hidden(Sees(), batch).tolist() == [[-1]]
    assert build(pooling="mean").hidden(Sees(), batch).tolist() == [[1]]


def test_training_images_move_and_held_out_ones_do_not() -> None:
    """Every move within `shift` occurs, its border drawn out; equal keys move equally."""
    objective = build(shift=1, flip=True)
    assert np.array_equal(objective.varied(PIXELS, (-1, 7)), PIXELS)
    padded = np.pad(PIXELS, ((0, 0), (1, 1), (1, 1)), mode="edge")
    moves = {padded[:, y : y + 4, x : x + 6].tobytes() for y in range(3) for x in range(3)}
    moves |= {padded[:, y : y + 4, x : x + 6][..., ::-1].tobytes() for y in range(3) for x in range(3)}
    assert len(moves) == 18
    assert {objective.varied(PIXELS, (epoch, 7)).tobytes() for epoch in range(300)} == moves
    assert np.array_equal(objective.varied(PIXELS, (2, 7)), build(shift=1, flip=True).varied(PIXELS, (2, 7)))
    assert build(seed=4, shift=1).varied(PIXELS, (2, 7)).shape == PIXELS.shape


def test_figures_are_of_all_batches() -> None:
    """Guesses b a b of b b c."""
    objective, figures = build(), Figures(build())
    figures.reset("cpu")
    bright, dark = np.full((2, 4, 6), 255, dtype=np.uint8), np.zeros((2, 4, 6), dtype=np.uint8)
    for examples in ([(bright, 1), (dark, 1)], [(bright, 2)], []):
        rows = [{"pixels": pixels, "label": label} for pixels, label in examples]
        figures.add(Sees(), objective.collate(rows, [(-1, 0)] * len(rows)))
    found = figures.means(None)
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["macro_f1"] == pytest.approx((0 + 1 / 2 + 0) / 3)


def test_samples_say_what_was_guessed() -> None:
    [sample] = build().samples(Sees(), [{"pixels": PIXELS + np.uint8(200), "label": 1}])
    assert (sample.source, sample.output, sample.target, sample.correct) == ("4 x 6 pixels", "b", "b", True)


def test_the_head_is_a_projection() -> None:
    head = build(dropout=0.25).model_arguments()["head"]
    assert isinstance(head, partial)
    made = head(PatchEmbedding(7, image_size=4, patch_size=2, channels=1))
    assert isinstance(made, ClassificationHead)
    assert {name: tuple(p.shape) for name, p in made.named_parameters()} == {
        "classifier.weight": (3, 7),
        "classifier.bias": (3,),
    }


def test_refusals() -> None:
    for change, said in (
        ({"pooling": "last"}, r"pooling='last' is unknown; set task\.pooling to first or mean"),
        ({"shift": -1}, r"shift=-1 is negative; set task\.shift"),
        ({"labels": ("a",)}, r"labels \['a'\], at least two are needed; check data\.train_files"),
    ):
        with pytest.raises(ValueError, match=said):
            build(**change)
