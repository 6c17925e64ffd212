import torch
from torch import nn

from triform.models.blank import blank


def test_shapes_without_numbers() -> None:
    """Nothing of torch fills anything, and what is built after it is filled as ever."""
    with blank():
        layers = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 4), nn.LayerNorm(4), nn.LSTM(4, 2))
    assert {parameter.device.type for parameter in layers.parameters()} == {"meta"}
    assert layers[1].weight.shape == (4, 3)
    assert torch.equal(nn.LayerNorm(4).weight, torch.ones(4))
    assert nn.Linear(3, 4).weight.device.type == "cpu"
