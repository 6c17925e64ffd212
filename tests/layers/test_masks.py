"""Every mask here is written out: rows are queries, columns keys, 1 = may attend."""

import pytest
import torch

from triform.layers.masks import AttentionMask


def dense(mask: AttentionMask, q_len: int, kv_len: int) -> list[list[int]]:
    """Of the first row of the batch."""
    seen = mask.dense(q_len, kv_len, torch.device("cpu"))
    assert seen is not None
    return seen[0, 0].expand(q_len, kv_len).long().tolist()


def test_causal() -> None:
    assert dense(AttentionMask(causal=True), 3, 3) == [
        [1, 0, 0],
        [1, 1, 0],
        [1, 1, 1],
    ]


def test_causal_under_a_cache_counts_the_queries_from_the_end() -> None:
    assert dense(AttentionMask(causal=True), 2, 4) == [
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]


def test_causal_window_holds_the_query_and_the_keys_before_it() -> None:
    assert dense(AttentionMask(causal=True, window=2), 4, 4) == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]


def test_window_of_one_keeps_the_diagonal() -> None:
    for causal in (False, True):
        assert dense(AttentionMask(causal=causal, window=1), 3, 3) == [
            [1, 0, 0],
            [0, 1, 0],
            [0, 0, 1],
        ]


def test_window_without_causal_lies_on_both_sides() -> None:
    assert dense(AttentionMask(window=3), 4, 4) == [
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [0, 1, 1, 1],
        [0, 0, 1, 1],
    ]


def test_window_under_a_cache() -> None:
    assert dense(AttentionMask(causal=True, window=3), 1, 5) == [[0, 0, 1, 1, 1]]


def test_prefix_is_read_both_ways() -> None:
    mask = AttentionMask(causal=True, prefix_length=torch.tensor([2, 0]))
    assert dense(mask, 4, 4) == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]
    second = mask.dense(4, 4, torch.device("cpu"))
    assert second is not None
    assert torch.equal(second[1, 0], torch.ones(4, 4, dtype=torch.bool).tril())


def test_each_packed_document_has_its_own_prefix() -> None:
    mask = AttentionMask(
        causal=True,
        prefix_length=torch.tensor([[2, 2, 2, 5, 5, 5]]),
        documents=torch.tensor([[1, 1, 1, 2, 2, 2]]),
    )
    expected = [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
    ]
    dense = mask.dense(6, 6, torch.device("cpu"))
    assert dense is not None
    assert dense[0, 0].int().tolist() == expected
    piece = mask.block((3, 5), (2, 6), 6, torch.device("cpu"))
    assert piece is not None
    assert piece[0, 0].int().tolist() == [row[2:6] for row in expected[3:5]]


def test_padding_hides_keys() -> None:
    assert dense(AttentionMask(causal=True, padding=torch.tensor([[False, True, True]])), 3, 3) == [
        [0, 0, 0],
        [0, 1, 0],
        [0, 1, 1],
    ]


def test_documents_of_a_packed_row_do_not_see_each_other() -> None:
    assert dense(AttentionMask(causal=True, documents=torch.tensor([[5, 5, 7, 7]])), 4, 4) == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 1, 1],
    ]


def test_and_lets_through_what_both_let_through() -> None:
    a = AttentionMask(causal=True, window=3, padding=torch.tensor([[True, True, False, True]]))
    b = AttentionMask(window=2, padding=torch.tensor([[False, True, True, True]]))
    assert dense(a & b, 4, 4) == [
        [0, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
    ]


def test_and_takes_the_shorter_prefix() -> None:
    def prefixed(n: int) -> AttentionMask:
        return AttentionMask(causal=True, prefix_length=torch.tensor([n]))

    assert (prefixed(3) & prefixed(2)).prefix_length == torch.tensor([2])
    assert (prefixed(3) & AttentionMask(causal=True)).prefix_length is None
    assert (prefixed(3) & AttentionMask(window=4)).prefix_length == torch.tensor([3])


def test_and_refuses_two_numberings() -> None:
    numbered = AttentionMask(documents=torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="both masks number documents"):
        numbered & numbered


@pytest.mark.parametrize(
    ("mask", "q_len", "kv_len"),
    [
        (AttentionMask(), 3, 3),
        (AttentionMask(causal=True), 1, 4),
        (AttentionMask(window=9), 4, 4),
        (AttentionMask(causal=True, window=5), 1, 5),
    ],
)
def test_what_hides_nothing_needs_no_dense_mask(mask: AttentionMask, q_len: int, kv_len: int) -> None:
    assert mask.dense(q_len, kv_len, torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("mask", "q_len", "kv_len", "expected"),
    [
        (AttentionMask(causal=True), 4, 4, True),
        (AttentionMask(causal=True, window=4), 4, 4, True),
        (AttentionMask(causal=True, window=3), 4, 4, False),
        (AttentionMask(causal=True), 2, 4, False),
        (AttentionMask(causal=True), 1, 1, False),
        (AttentionMask(), 4, 4, False),
        (AttentionMask(causal=True, padding=torch.ones(1, 4, dtype=torch.bool)), 4, 4, False),
        (AttentionMask(causal=True, documents=torch.zeros(1, 4, dtype=torch.long)), 4, 4, False),
        (AttentionMask(causal=True, prefix_length=torch.tensor([1])), 4, 4, False),
    ],
)
def test_is_causal_only(mask: AttentionMask, q_len: int, kv_len: int, expected: bool) -> None:
    assert mask.is_causal_only(q_len, kv_len) is expected


def test_layers_with_the_same_window_share_a_mask() -> None:
    mask = AttentionMask(causal=True)
    assert mask.within(None) is mask
    assert mask.within(3) is mask.within(3)
    assert mask.within(3) is not mask.within(4)
