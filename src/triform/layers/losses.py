"""What a model is trained to make small."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

SMOOTHINGS = ("torch", "fairseq", "annotated")
"""Published definitions of label smoothing, see `CrossEntropy`."""


class CrossEntropy:
    """The sum of cross-entropies in nats over the labels that are not -100, in float32.

    A sum, because only who knows the whole batch can take its mean.

    Args:
        label_smoothing: share e of the target's probability spread over other classes (Szegedy et al. 2016, section 7).
        smoothing: over which, with V classes:
            "torch": evenly over all, as in the paper; the true one gets 1 - e + e / V, any other e / V.
            "fairseq": over all but the true one, which gets 1 - e; any other e / (V - 1). Also tensor2tensor's.
            "annotated": over all but the true one and `pad_id`, which gets 0; any other e / (V - 2). That of "The
            Annotated Transformer" and Joey NMT, as a cross-entropy: theirs is a divergence, less by the target's own
            entropy, which has no gradient.
        pad_id: the class that is never a label; of "annotated" only.
        z_loss: weight of log(Z)^2, with Z the sum of exp(logits), which keeps logits from drifting (Chowdhery et al.
            2022, section 5: 1e-4); at least 0.
        class_weights: factor of each class's losses, at least 0; None: 1. A sum of weighted losses, and nothing is
            divided by the sum of the weights.

    Raises:
        ValueError: `label_smoothing` outside [0, 1), an unknown `smoothing`, "annotated" without `pad_id`, a negative
            `z_loss`, `class_weights` that are negative or not finite or given with label smoothing.
    """

    ignored = -100

    def __init__(
        self,
        label_smoothing: float,
        smoothing: str = "torch",
        pad_id: int | None = None,
        z_loss: float = 0.0,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"CrossEntropy: label_smoothing={label_smoothing} is no share; set task.label_smoothing to at "
                f"least 0 and less than 1"
            )
        if smoothing not in SMOOTHINGS:
            raise ValueError(
                f"CrossEntropy: smoothing={smoothing!r} is unknown; set task.smoothing to {', '.join(SMOOTHINGS)}"
            )
        if smoothing == "annotated" and pad_id is None:
            raise ValueError(
                "CrossEntropy: smoothing='annotated' leaves out padding, and there is none among these classes; set "
                "task.smoothing to torch or fairseq"
            )
        if not 0 <= z_loss < math.inf:
            raise ValueError(
                f"CrossEntropy: z_loss={z_loss} is not finite and at least 0; set task.z_loss, 1e-4 in PaLM"
            )
        if class_weights is not None and not all(0 <= weight < math.inf for weight in class_weights):
            raise ValueError(
                f"CrossEntropy: class_weights={list(class_weights)} are not all finite and at least 0; set "
                f"task.class_weights to such, or to balanced or null"
            )
        if class_weights is not None and label_smoothing > 0:
            raise ValueError(
                f"CrossEntropy: class_weights with label_smoothing={label_smoothing} have no one meaning; set "
                f"task.label_smoothing=0 or task.class_weights=null"
            )
        self.label_smoothing, self.smoothing, self.pad_id, self.z_loss = label_smoothing, smoothing, pad_id, z_loss
        self.class_weights = None if class_weights is None else torch.tensor(list(class_weights), dtype=torch.float32)

    def __call__(self, logits: Float[Tensor, "*batch n_classes"], labels: Int[Tensor, "*batch"]) -> Float[Tensor, ""]:
        logits, labels = logits.flatten(0, -2).float(), labels.flatten()
        total = self._cross_entropy(logits, labels)
        if self.z_loss:
            log_z = logits.logsumexp(-1)
            total = total + self.z_loss * (log_z * log_z * (labels != self.ignored)).sum()
        return total

    def _cross_entropy(
        self, logits: Float[Tensor, "n_labels n_classes"], labels: Int[Tensor, " n_labels"]
    ) -> Float[Tensor, ""]:
        if self.label_smoothing == 0 or self.smoothing == "torch":
            weights = None if self.class_weights is None else self.class_weights.to(logits.device)
            return F.cross_entropy(
                logits,
                labels,
                weight=weights,
                ignore_index=self.ignored,
                reduction="sum",
                label_smoothing=self.label_smoothing,
            )
        counted = labels != self.ignored
        log_probabilities = logits.log_softmax(-1)
        true = log_probabilities.gather(-1, labels.clamp_min(0)[:, None])[:, 0]
        others, n_others = log_probabilities.sum(-1) - true, logits.shape[-1] - 1
        if self.smoothing == "annotated":
            others, n_others = others - log_probabilities[:, self.pad_id], n_others - 1
        spread = self.label_smoothing / n_others
        return -(((1 - self.label_smoothing) * true + spread * others) * counted).sum()


class BinaryCrossEntropy:
    """The sum of cross-entropies in nats of yes-or-no questions, one for each class of each text, in float32."""

    def __call__(
        self, logits: Float[Tensor, "batch n_classes"], labels: Bool[Tensor, "batch n_classes"]
    ) -> Float[Tensor, ""]:
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float(), reduction="sum")


class SquaredError:
    """The sum of squared differences, in float32; a target that is NaN counts nothing."""

    def __call__(self, outputs: Float[Tensor, " batch"], targets: Float[Tensor, " batch"]) -> Float[Tensor, ""]:
        difference = outputs.float() - targets
        return torch.where(targets.isnan(), 0.0, difference).square().sum()
