"""What tasks that predict tokens minimise and measure."""

import math

from torch import Tensor

from triform.data.tokenizers import Tokenizer
from triform.layers.losses import CrossEntropy
from triform.tasks.objective import IGNORED, Batch, Criterion, Measures, Model


class TokenLoss(Criterion):
    """Cross-entropy, the share of targets that are the likeliest token, and perplexity.

    Args:
        label_smoothing, smoothing, z_loss: see `CrossEntropy`; of what is trained on alone.
        tokenizer: whose padding is never a target.
        whole: measure `exact_match`, too: the share of rows of which every target is the likeliest token.
    """

    def __init__(
        self, label_smoothing: float, smoothing: str, z_loss: float, tokenizer: Tokenizer, whole: bool = False
    ) -> None:
        self.whole = whole
        self.train_loss = CrossEntropy(label_smoothing, smoothing, tokenizer.pad_id, z_loss)
        self.plain_loss = CrossEntropy(0.0)

    def loss(self, model: Model, hidden: Tensor, batch: Batch) -> Tensor:
        loss: Tensor = model.head(hidden, batch["labels"], self.train_loss)
        return loss

    def evaluate(self, model: Model, hidden: Tensor, batch: Batch) -> Measures:
        logits, labels = model.head(hidden), batch["labels"]
        right = logits.argmax(-1) == labels
        ratios = {"accuracy": (right.sum(), batch["n_targets"])}
        if self.whole:
            target = labels != IGNORED
            ratios["exact_match"] = (((right | ~target).all(-1) & target.any(-1)).sum(), batch["n_rows"])
        return Measures(self.plain_loss(logits, labels), batch["n_targets"], ratios)

    def derive(self, loss: float, n_targets: float, n_bytes: int | None) -> dict[str, float]:
        """Perplexity; infinite where a float cannot hold it, NaN where the loss is."""
        return {"perplexity": math.inf if loss >= 700 else math.exp(loss)}
