import pytest
import torch

from triform.layers.position.learned import Learned


def test_adds_the_row_of_each_position() -> None:
    position = Learned(d_model=24, n_heads=3, head_dim=8, max_seq_len=9, causal=True, offset=0)
    x = torch.randn(2, 3, 24)
    out = position.embed(x, torch.tensor([[0, 1, 8], [4, 0, 1]]))
    torch.testing.assert_close(out[1, 0], x[1, 0] + position.table.weight[4])
    torch.testing.assert_close(out[0, 2], x[0, 2] + position.table.weight[8])


def test_the_first_position_may_have_a_later_row() -> None:
    position = Learned(d_model=24, n_heads=3, head_dim=8, max_seq_len=9, causal=True, offset=2)
    assert position.table.weight.shape == (11, 24)
    x = torch.zeros(1, 2, 24)
    torch.testing.assert_close(position.embed(x, torch.tensor([[0, 8]]))[0], position.table.weight[[2, 10]])
    with pytest.raises(ValueError, match=r"Learned: offset=-1 is negative; set model\.position\.offset to at least 0"):
        Learned(d_model=24, n_heads=3, head_dim=8, max_seq_len=9, causal=True, offset=-1)
