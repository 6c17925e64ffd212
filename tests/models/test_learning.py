import pytest
import torch

from tests.models.composed import FAMILIES, build, ids, read
from triform.layers.losses import CrossEntropy


@pytest.mark.parametrize("family", FAMILIES)
def test_overfits_one_batch(family: str) -> None:
    """Labels that cannot be read off the inputs: each must be learned by its place."""
    model, tokens, labels = build(family).train(), ids(2, 7), ids(2, 7, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(80):
        loss = model.head(read(model, tokens).hidden, labels, CrossEntropy(0.0)) / labels.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2
    assert losses[-1] < 0.05
