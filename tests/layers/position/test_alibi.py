import pytest
import torch

from triform.layers.position.alibi import Alibi, slopes


def test_slopes_of_a_power_of_two() -> None:
    assert slopes(8) == [2**-i for i in range(1, 9)]
    assert slopes(1) == [2**-8]


@pytest.mark.parametrize("n_heads", [1, 3, 4, 6, 12, 20])
def test_slopes_equal_bloom(n_heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(slopes(n_heads)), theirs)


@pytest.mark.parametrize("causal", [True, False])
def test_scores_fall_with_distance(causal: bool) -> None:
    position = Alibi(d_model=24, n_heads=2, head_dim=12, max_seq_len=9, causal=causal)
    bias = position.bias(torch.arange(2, 4), torch.arange(4))
    expected = -torch.tensor([[2.0, 1.0, 0.0, 1.0], [3.0, 2.0, 1.0, 0.0]])
    torch.testing.assert_close(bias, torch.stack((expected / 16, expected / 256))[None])
