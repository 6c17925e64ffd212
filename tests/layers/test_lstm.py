import torch
from torch import nn

from triform.layers.lstm import LSTM, LSTMCell


def filled(made: LSTM | LSTMCell) -> LSTM | LSTMCell:
    for i, (name, value) in enumerate(made.named_parameters()):
        made.initialise_parameter(name, value.data, torch.Generator().manual_seed(i))
    return made


@torch.no_grad()
def test_it_begins_as_it_says() -> None:
    for made in (filled(LSTM(5, 3)), filled(LSTMCell(5, 3))):
        of = {name.removesuffix("_l0"): value for name, value in made.named_parameters()}
        forget = torch.tensor([0.0] * 3 + [1.0] * 3 + [0.0] * 6)  # torch's gates: input, forget, cell, output
        assert torch.equal(of["bias_ih"] + of["bias_hh"], forget)
        for gate in of["weight_hh"].chunk(4):
            torch.testing.assert_close(gate @ gate.T, torch.eye(3))
        bound = (6 / (5 + 3)) ** 0.5
        assert all(0.6 * bound < gate.abs().max() <= bound for gate in of["weight_ih"].chunk(4))


@torch.no_grad()
def test_the_forget_gate_is_torchs_second() -> None:
    """Where only that gate is open, the cell keeps what it had."""
    cell = nn.LSTMCell(2, 1)
    for parameter in cell.parameters():
        parameter.zero_()
    cell.bias_ih.copy_(torch.tensor([-50.0, 50.0, 0.0, 0.0]))
    _, c = cell(torch.ones(1, 2), (torch.zeros(1, 1), torch.full((1, 1), 0.7)))
    torch.testing.assert_close(c, torch.full((1, 1), 0.7))


@torch.no_grad()
def test_pieces_are_the_whole_and_the_cell() -> None:
    layer, cell, x = filled(LSTM(5, 3)), LSTMCell(5, 3), torch.randn(2, 7, 5)
    assert isinstance(layer, LSTM)
    for name, value in cell.named_parameters():
        value.copy_(layer.get_parameter(f"{name}_l0"))
    state = begin = torch.randn(2, 3), torch.randn(2, 3)
    whole, end = layer.read(x, begin)
    pieces = []
    for piece in x.split([1, 4, 2], dim=1):
        out, state = layer.read(piece, state)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
    torch.testing.assert_close(state, end)
    h, c = begin
    for t in range(7):
        h, c = cell(x[:, t], (h, c))
        torch.testing.assert_close(h, whole[:, t])
