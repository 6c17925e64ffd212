"""What a model is trained to make small."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


class CrossEntropy:
    """The sum of cross-entropies in nats over the labels that are not -100, in float32.

    A sum, because only who knows the whole batch can take its mean.

    Args:
        label_smoothing: share e of the target spread evenly over all classes (Szegedy et al. 2016, section 7):
            the true one gets 1 - e + e / n_classes, every other e / n_classes.

    Raises:
        ValueError: `label_smoothing` outside [0, 1).
    """

    ignored = -100

    def __init__(self, label_smoothing: float) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"CrossEntropy: label_smoothing={label_smoothing} is no share; set task.label_smoothing to at "
                f"least 0 and less than 1"
            )
        self.label_smoothing = label_smoothing

    def __call__(self, logits: Float[Tensor, "*batch n_classes"], labels: Int[Tensor, "*batch"]) -> Float[Tensor, ""]:
        return F.cross_entropy(
            logits.flatten(0, -2).float(),
            labels.flatten(),
            ignore_index=self.ignored,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
