import pytest
import torch

from triform.layers.losses import CrossEntropy

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -2.0]])


def test_known_values() -> None:
    """Logits [2, 1, 0, -2], target 0: 0.419717 nats; smoothed by 0.1, spread over all four: 0.594717."""
    assert CrossEntropy(0.0)(LOGITS, torch.tensor([0])).item() == pytest.approx(0.419717, abs=1e-6)
    assert CrossEntropy(0.1)(LOGITS, torch.tensor([0])).item() == pytest.approx(0.594717, abs=1e-6)


def test_sums_over_the_labels_that_count() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    labels = torch.tensor([[1, -100, 4], [-100, -100, 0]])
    loss = CrossEntropy(0.1)(logits, labels)
    alone = sum(CrossEntropy(0.1)(logits[i, j][None], labels[i, j][None]) for i, j in [(0, 0), (0, 2), (1, 2)])
    torch.testing.assert_close(loss, alone)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 1].eq(0).all()


def test_no_label_is_zero_not_nan() -> None:
    logits = torch.randn(1, 3, 5, requires_grad=True)
    loss = CrossEntropy(0.0)(logits, torch.full((1, 3), -100))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert logits.grad.eq(0).all()


def test_is_computed_in_float32() -> None:
    assert CrossEntropy(0.0)(LOGITS.bfloat16(), torch.tensor([0])).dtype == torch.float32


def test_refuses_a_share_of_one() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing=1\.0 is no share; set task\.label_smoothing"):
        CrossEntropy(1.0)
