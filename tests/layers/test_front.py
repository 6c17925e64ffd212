import torch

from triform.layers.front import Front, real_first, turned

MASK = torch.tensor([[True, False, True, True, False], [False, False, True, False, False], [True] * 5])


def test_real_tokens_come_first_in_their_order_and_go_back() -> None:
    ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]])
    front = Front(MASK)
    assert front.move(ids).tolist() == [[1, 3, 4, 2, 5], [8, 6, 7, 9, 10], [11, 12, 13, 14, 15]]
    assert front.padding_mask.tolist() == [[True] * 3 + [False] * 2, [True] + [False] * 4, [True] * 5]
    assert torch.equal(front.back(front.move(ids)), ids)
    vectors = torch.randn(3, 5, 4, 2)
    assert torch.equal(front.move(vectors)[0, 1], vectors[0, 2])
    assert torch.equal(front.back(front.move(vectors)), vectors)


def test_rows_are_turned_within_their_length() -> None:
    ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]])
    mask = real_first(torch.tensor([3, 0, 5]), 5)
    assert turned(ids, mask).tolist() == [[3, 2, 1, 4, 5], [6, 7, 8, 9, 10], [15, 14, 13, 12, 11]]
    assert torch.equal(turned(turned(ids, mask), mask), ids)
    assert torch.equal(turned(ids, None), ids.flip(1))
