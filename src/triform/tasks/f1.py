"""F1 of classes: counts that add up over batches and ranks."""

import numpy as np
import torch
from torch import Tensor


def class_counts(guesses: Tensor, truth: Tensor) -> Tensor:
    """Right guesses, guesses and true ones of each class, after each other.

    Args:
        guesses, truth: Bool, (examples, classes).
    """
    return torch.cat([(guesses & truth).sum(0), guesses.sum(0), truth.sum(0)])


def one_hot(classes: Tensor, n_classes: int) -> Tensor:
    """Bool, (examples, classes); a class of -100 is none."""
    return classes[:, None] == torch.arange(n_classes, device=classes.device)


def micro_f1(counts: np.ndarray) -> float:
    """Over the choices of all classes together; NaN where there was nothing to find and nothing was found."""
    right, guessed, true = counts.reshape(3, -1).sum(axis=1)
    return float(2 * right / (guessed + true)) if guessed + true else float("nan")


def macro_f1(counts: np.ndarray) -> float:
    """The mean over the classes that occur or were guessed, as scikit-learn's `f1_score(average="macro")`."""
    right, guessed, true = counts.reshape(3, -1)
    met = guessed + true > 0
    return float(np.mean(2 * right[met] / (guessed + true)[met])) if met.any() else float("nan")
