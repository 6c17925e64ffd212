import pytest
import torch
from torch import Tensor, nn

from triform.layers.convolution import Convolution
from triform.layers.state import StateCache


def make(kernel_size: int, dilation: int, *, causal: bool, normalised: bool = False) -> Convolution:
    made = Convolution(5, 7, kernel_size, dilation=dilation, causal=causal, variance=2.0, normalised=normalised)
    for i, (name, value) in enumerate(made.named_parameters()):
        made.initialise_parameter(name, value.data, torch.Generator().manual_seed(i))
    nn.init.normal_(made.bias)
    return made


def by_torch(made: Convolution, x: Tensor) -> Tensor:
    """With torch's module and its weight normalisation, whose output is cut to the row."""
    size = made.weight.shape[2]
    plain = nn.Conv1d(5, 7, size, dilation=made.dilation, padding=made.reach if made.causal else made.reach // 2)
    if made.gain is not None:
        nn.utils.parametrizations.weight_norm(plain)
        plain.parametrizations.weight.original0.data = made.gain.data[:, None, None]
        plain.parametrizations.weight.original1.data = made.weight.data
    else:
        plain.weight = made.weight
    plain.bias = made.bias
    return plain(x.transpose(1, 2)).transpose(1, 2)[:, : x.shape[1]]


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(
    ("kernel_size", "dilation", "causal"), [(3, 1, True), (2, 4, True), (3, 2, False), (1, 1, True)]
)
@torch.no_grad()
def test_it_is_torchs_convolution(kernel_size: int, dilation: int, causal: bool, normalised: bool) -> None:
    made, x = make(kernel_size, dilation, causal=causal, normalised=normalised), torch.randn(2, 9, 5)
    torch.testing.assert_close(made(x), by_torch(made, x))
    assert made.flops(9) == 2 * 5 * 7 * kernel_size * 9


@pytest.mark.parametrize("kernel_size", [1, 2, 3])
@torch.no_grad()
def test_pieces_are_the_whole(kernel_size: int) -> None:
    made, x, cache = make(kernel_size, 2, causal=True), torch.randn(2, 9, 5), StateCache(3, 9)
    pieces = [made(piece, cache, 1) for piece in x.split([1, 5, 2, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), made(x))
    assert cache.states[1][0].shape == (2, 2 * (kernel_size - 1), 5), "more is kept than it reaches back to"


@torch.no_grad()
def test_outputs_begin_with_the_variance_that_is_asked_for() -> None:
    for normalised in (True, False):
        made = Convolution(64, 256, 3, causal=True, variance=4.0, normalised=normalised)
        for name, value in made.named_parameters():
            made.initialise_parameter(name, value.data, torch.Generator().manual_seed(0))
        assert made(torch.randn(8, 32, 64))[:, 2:].var() == pytest.approx(4.0, rel=0.1)


def test_an_even_convolution_has_no_middle() -> None:
    with pytest.raises(ValueError, match=r"kernel_size=4 has no middle; set model\.network\.kernel_size"):
        make(4, 1, causal=False)
    assert make(4, 1, causal=True).reach == 3
