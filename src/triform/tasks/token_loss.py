"""The losses of a task that predicts tokens."""

from triform.data.tokenizers import Tokenizer
from triform.layers.losses import CrossEntropy


def token_losses(
    label_smoothing: float, smoothing: str, z_loss: float, tokenizer: Tokenizer
) -> tuple[CrossEntropy, CrossEntropy]:
    """What is trained on, and the cross-entropy alone, which is measured; see `CrossEntropy`."""
    return CrossEntropy(label_smoothing, smoothing, tokenizer.pad_id, z_loss), CrossEntropy(0.0)
