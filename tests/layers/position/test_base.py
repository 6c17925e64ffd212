import torch

from triform.layers.position.base import count_positions

CPU = torch.device("cpu")


def test_counts_from_zero() -> None:
    assert count_positions(4, 4, None, None, CPU).tolist() == [[0, 1, 2, 3]]


def test_under_a_cache_only_the_new_tokens() -> None:
    assert count_positions(2, 5, None, None, CPU).tolist() == [[3, 4]]
    padding = torch.tensor([[False, False, True, True, True]])
    assert count_positions(2, 5, padding, None, CPU).tolist() == [[1, 2]]


def test_padding_is_not_counted() -> None:
    padding = torch.tensor([[True, True, True, False], [False, False, True, True]])
    positions = count_positions(4, 4, padding, None, CPU)
    assert positions[0, :3].tolist() == [0, 1, 2]
    assert positions[1].tolist() == [0, 0, 0, 1]


def test_every_document_begins_at_zero() -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [4, 4, 5, 5, 5, 5, 5]])
    assert count_positions(7, 7, None, documents, CPU).tolist() == [
        [0, 1, 2, 0, 1, 0, 1],
        [0, 1, 0, 1, 2, 3, 4],
    ]


def test_documents_after_padding_on_the_left() -> None:
    documents = torch.tensor([[0, 0, 0, 0, 1, 1]])
    padding = torch.tensor([[False, False, True, True, True, True]])
    assert count_positions(6, 6, padding, documents, CPU)[0, 2:].tolist() == [0, 1, 0, 1]
