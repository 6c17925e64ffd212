import torch

from triform.layers.position.learned import Learned


def test_adds_the_row_of_each_position() -> None:
    position = Learned(d_model=24, n_heads=3, head_dim=8, max_seq_len=9, causal=True)
    x = torch.randn(2, 3, 24)
    out = position.embed(x, torch.tensor([[0, 1, 8], [4, 0, 1]]))
    torch.testing.assert_close(out[1, 0], x[1, 0] + position.table.weight[4])
    torch.testing.assert_close(out[0, 2], x[0, 2] + position.table.weight[8])
