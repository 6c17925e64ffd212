import pytest
import torch

from triform.layers.position.t5 import T5


def t5(causal: bool, n_buckets: int = 32, max_distance: int = 128) -> T5:
    return T5(
        d_model=24,
        n_heads=3,
        head_dim=8,
        max_seq_len=9,
        causal=causal,
        n_buckets=n_buckets,
        max_distance=max_distance,
    )


@pytest.mark.parametrize(
    ("causal", "table"),
    [
        (
            False,
            {0: 0, -1: 1, 1: 17, -7: 7, -8: 8, -9: 8, 8: 24, -16: 10, 64: 30, -128: 15, -999: 15, 127: 31, 500: 31},
        ),
        (True, {5: 0, 0: 0, -15: 15, -16: 16, -64: 26, -128: 31, -999: 31}),
    ],
)
def test_the_published_buckets(causal: bool, table: dict[int, int]) -> None:
    """Of the place of a key minus that of its query."""
    found = t5(causal).buckets(torch.tensor([list(table)]))[0].tolist()
    assert dict(zip(table, found, strict=True)) == table


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 20), (4, 9)])
def test_buckets_equal_hugging_face(causal: bool, n_buckets: int, max_distance: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    relative = torch.arange(-200, 201)[None]
    theirs = T5Attention._relative_position_bucket(relative, not causal, n_buckets, max_distance)
    assert torch.equal(t5(causal, n_buckets, max_distance).buckets(relative), theirs)


def test_each_head_has_its_own_score() -> None:
    position = t5(causal=False)
    bias = position.bias(torch.tensor([3]), torch.arange(5))
    assert bias.shape == (1, 3, 1, 5)
    torch.testing.assert_close(bias[0, :, 0], position.table.weight[[3, 2, 1, 0, 17]].T)


def test_refuses_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"n_buckets=7 is odd or less than 4; set model\.position\.n_buckets"):
        t5(True, n_buckets=7)
    with pytest.raises(
        ValueError, match=r"max_distance=16 leaves nothing .* set model\.position\.max_distance above 16"
    ):
        t5(True, max_distance=16)
