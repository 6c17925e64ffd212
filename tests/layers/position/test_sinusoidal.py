import math

import pytest
import torch

from triform.layers.position.sinusoidal import Sinusoidal


def sinusoidal(d_model: int) -> Sinusoidal:
    return Sinusoidal(d_model=d_model, n_heads=1, head_dim=d_model, max_seq_len=9, causal=True, max_period=1e4)


def test_the_paper_formula() -> None:
    """PE(p, 2i) = sin(p / 10000^(2i / d)), PE(p, 2i + 1) = cos of the same."""
    table = sinusoidal(6).table(torch.tensor([[0, 1, 7]]))[0]
    for row, p in enumerate((0, 1, 7)):
        for i in range(3):
            phase = p / 10000 ** (2 * i / 6)
            assert table[row, 2 * i].item() == pytest.approx(math.sin(phase), abs=1e-6)
            assert table[row, 2 * i + 1].item() == pytest.approx(math.cos(phase), abs=1e-6)


def test_sines_and_cosines_alternate() -> None:
    expected = torch.tensor([0.84147, 0.54030, 0.0099998, 0.99995])
    torch.testing.assert_close(sinusoidal(4).table(torch.tensor([[1]]))[0, 0], expected, rtol=1e-5, atol=1e-5)


def test_an_odd_width_ends_with_a_sine() -> None:
    table = sinusoidal(29).table(torch.arange(7)[None])
    assert table.shape == (1, 7, 29)
    torch.testing.assert_close(table[0, :, 28], (torch.arange(7) * 10000 ** (-28 / 29)).sin())


def test_far_positions_are_exact_under_autocast_and_half_weights() -> None:
    x, far = torch.zeros(1, 1, 8), torch.tensor([[1001]])
    exact = sinusoidal(8).embed(x, far)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sinusoidal(8).embed(x, far), exact)
    assert torch.equal(sinusoidal(8).to(torch.bfloat16).embed(x, far), exact)
