import torch

from triform.layers.additive_attention import AdditiveAttention, weigh


@torch.no_grad()
def test_it_is_the_formula() -> None:
    attention, query, memory = AdditiveAttention(3, 4, 5), torch.randn(2, 3), torch.randn(2, 6, 4)
    mask = torch.arange(6) < torch.tensor([[6], [2]])
    context, weights = attention(query, attention.k_proj(memory), memory, mask)
    for row, n in enumerate((6, 2)):
        w, u, v = attention.q_proj, attention.k_proj.weight, attention.score_proj.weight[0]
        scores = torch.stack([v @ (w.weight @ query[row] + w.bias + u @ memory[row, j]).tanh() for j in range(n)])
        torch.testing.assert_close(weights[row, 0, :n], scores.softmax(0))
        torch.testing.assert_close(context[row], scores.softmax(0) @ memory[row, :n])
        assert weights[row, 0, n:].eq(0).all()


def test_a_source_of_padding_has_no_weight_and_no_gradient() -> None:
    scores = torch.randn(2, 3, 4, requires_grad=True)
    weights = weigh(scores, torch.tensor([[True] * 4, [False] * 4]))
    assert weights[1].eq(0).all()
    weights.square().sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[1].eq(0).all()
    assert scores.grad[0].ne(0).any()
