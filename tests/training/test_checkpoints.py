"""A checkpoint's state of the optimizer fits the parameters before it is used."""

import pytest
import torch
from torch import nn

from triform.training.checkpoints import check_state
from triform.training.optimizers import Joint


def stepped(model: nn.Module) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("key", "wrong", "shape"),
    [
        ("exp_avg", torch.zeros(3), r"\[3\], its optimizer needs \[3, 5\]"),
        ("exp_avg_sq", torch.zeros(5, 3), r"\[5, 3\], its optimizer needs \[3, 5\]"),
        ("step", torch.ones(2), r"\[2\], its optimizer needs \[\]"),
    ],
)
def test_a_state_of_another_size_is_refused(key: str, wrong: torch.Tensor, shape: str) -> None:
    model = nn.Linear(5, 3)
    optimizer = stepped(model)
    check_state(optimizer, model)
    state = optimizer.state_dict()
    state["state"][0][key] = wrong
    optimizer.load_state_dict(state)
    for whole in (optimizer, Joint(torch.optim.SGD([nn.Parameter(torch.ones(2))]), optimizer)):
        with pytest.raises(ValueError, match=rf"the checkpoint's {key} of weight has shape {shape}; put a good"):
            check_state(whole, model)


def test_optimizers_that_are_not_fused_see_to_it_themselves() -> None:
    model = nn.Linear(5, 3)
    optimizer = torch.optim.Adafactor(model.parameters())
    model.weight.grad = torch.ones(3, 5)
    optimizer.step()
    assert {tuple(value.shape) for value in optimizer.state[model.weight].values()} >= {(3, 1), (1, 5)}
    check_state(optimizer, model)
