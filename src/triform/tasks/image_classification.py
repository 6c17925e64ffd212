"""One label for an image."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triform.data.prepare import Split
from triform.data.tokenizers import Tokenizer
from triform.models.heads import ClassificationHead
from triform.tasks.choice import Choice, known_labels
from triform.tasks.noise import generator
from triform.tasks.objective import IGNORED, Batch, Key, Model, Objective, Sample
from triform.tasks.text_state import POOLINGS


class ImageClassification(Objective):
    """Chooses one class of an image, from the state of the vector that stands for it (Dosovitskiy et al. 2021).

    Pixels from 0 to 255 are read as -1 to 1, as in ViT's own code. The head is a projection alone, as when ViT is
    fine-tuned.

    Args:
        label_smoothing: share of the probability spread over the classes, in [0, 1).
        class_weights: factor of each class's losses, in the order of the labels; "balanced": rare classes count as
            much as common ones; null: all 1. Weighted losses are summed and divided by the number of images. Figures
            are without weights.
        pooling: "first": the vector of the whole image; "mean": that of all patches.
        dropout: before the classifier, in [0, 1).
        shift: most pixels by which a training image is moved to each side; its border is drawn out.
        flip: turn half of the training images left to right.

    Raises:
        ValueError: unknown `pooling` or `class_weights`, `shift` < 0, fewer than two classes; see also `CrossEntropy`.
    """

    kinds = ("images",)
    families = ("encoder",)
    monitor = ("accuracy", "max")
    measures = ("accuracy",)
    derived = ("macro_f1",)

    def __init__(
        self,
        label_smoothing: float,
        class_weights: Sequence[float] | str | None,
        pooling: str,
        dropout: float,
        shift: int,
        flip: bool,
        *,
        family: str,
        tokenizer: Tokenizer | None,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        name = type(self).__name__
        if pooling not in POOLINGS:
            raise ValueError(f"{name}: pooling={pooling!r} is unknown; set task.pooling to {' or '.join(POOLINGS)}")
        if shift < 0:
            raise ValueError(f"{name}: shift={shift} is negative; set task.shift to a number of pixels, at least 0")
        self.labels = known_labels(name, labels, "data.train_files, which has a folder for each")
        self.criterion: Choice = Choice(name, self.labels, label_smoothing, class_weights)
        self.pooling, self.dropout, self.shift, self.flip = pooling, dropout, shift, flip
        self.seq_len, self.seed = seq_len, seed

    def look(self, train: Split) -> None:
        self.criterion.count(train.labels)

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        """A batch without examples has no `pixels`."""
        batch: Batch = {
            "labels": torch.tensor([int(example["label"]) for example in examples] or [IGNORED]),
            "n_tokens": len(examples) * self.seq_len,
            "n_targets": len(examples),
        }
        if examples:
            images = [self.varied(example["pixels"], key) for example, key in zip(examples, keys, strict=True)]
            batch["pixels"] = torch.from_numpy(np.stack(images))
        return batch

    def varied(self, pixels: np.ndarray, key: Key) -> np.ndarray:
        """An image as it is learned in an epoch; of held-out data (epoch -1) as it is."""
        if key[0] < 0 or (not self.shift and not self.flip):
            return pixels
        rng = generator(self.seed, key)
        down, right = rng.integers(-self.shift, self.shift + 1, size=2)
        _, height, width = pixels.shape
        rows = (np.arange(height) - down).clip(0, height - 1)
        columns = (np.arange(width) - right).clip(0, width - 1)
        if self.flip and rng.random() < 0.5:
            columns = columns[::-1]
        return pixels[:, rows][:, :, columns]

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        if "pixels" in batch:
            images = batch["pixels"].to(next(model.parameters()).dtype) / 127.5 - 1
        else:
            images = model.embedding.blank(self.seq_len)
        hidden = model(images).hidden
        return hidden[:, 0] if self.pooling == "first" else hidden[:, 1:].mean(1)

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        if not examples:
            return []
        images = torch.from_numpy(np.stack([example["pixels"] for example in examples]))
        batch = {"pixels": images.to(next(model.parameters()).device)}
        guesses = model.head(self.hidden(model, batch)).argmax(-1).tolist()
        return [
            Sample(
                "{1} x {2} pixels".format(*example["pixels"].shape),
                self.labels[guess],
                self.labels[int(example["label"])],
                guess == int(example["label"]),
            )
            for example, guess in zip(examples, guesses, strict=True)
        ]

    def model_arguments(self) -> dict[str, Any]:
        head = partial(ClassificationHead, n_classes=len(self.labels), dropout=self.dropout, transform=None)
        return {"head": head}
