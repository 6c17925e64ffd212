import torch
from torch import nn

from triform.layers.dropout import Dropout


def test_in_training_the_same_as_in_torch() -> None:
    x, drawn = torch.randn(5, 7), []
    for dropout in (Dropout(0.3), nn.Dropout(0.3)):
        torch.manual_seed(1)
        drawn.append(dropout(x))
    assert torch.equal(*drawn)
    assert (drawn[0] == 0).any()


def test_in_evaluation_the_very_same() -> None:
    x = torch.randn(5, 7)
    assert Dropout(0.3).eval()(x) is x
