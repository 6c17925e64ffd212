import math

import pytest
import torch

from triform.layers.position.sinusoidal import Sinusoidal


def sinusoidal(d_model: int, layout: str = "interleaved", max_period: float = 1e4) -> Sinusoidal:
    return Sinusoidal(
        d_model=d_model,
        n_heads=1,
        head_dim=d_model,
        max_seq_len=9,
        causal=True,
        max_period=max_period,
        layout=layout,
    )


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


def test_sines_before_cosines() -> None:
    """The published numbers at position 1."""
    one = torch.tensor([[1]])
    concatenated, t2t = (sinusoidal(16, layout).table(one)[0, 0] for layout in ("concatenated", "tensor2tensor"))
    torch.testing.assert_close(concatenated[:3], torch.tensor([0.84147, 0.31098, 0.09983]), rtol=0, atol=1e-5)
    torch.testing.assert_close(t2t[:3], torch.tensor([0.84147, 0.26506, 0.07191]), rtol=0, atol=1e-5)
    expected = torch.tensor([0.84147, 0.0001, 0.54030, 1.0])
    torch.testing.assert_close(sinusoidal(4, "tensor2tensor").table(one)[0, 0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("d_model", [8, 9])
def test_concatenated_equals_marian(d_model: int) -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(11, d_model)
    table = sinusoidal(d_model, "concatenated").table(torch.arange(11)[None])[0]
    torch.testing.assert_close(table, theirs.create_weight().float(), rtol=1e-5, atol=1e-6)


def test_an_odd_width_ends_with_zeros_in_tensor2tensor() -> None:
    table = sinusoidal(9, "tensor2tensor").table(torch.arange(7)[None])
    assert table[0, :, 8].eq(0).all()
    assert torch.equal(table[..., :8], sinusoidal(8, "tensor2tensor").table(torch.arange(7)[None]))


def test_refuses_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"layout='mixed' is unknown; set model\.position\.layout to interleaved"):
        sinusoidal(8, "mixed")
    with pytest.raises(ValueError, match=r"max_period=1\.0 is not above 1; set model\.position\.max_period"):
        sinusoidal(8, max_period=1.0)
