from collections.abc import Callable

import pytest
import torch

from triform.layers.embedding import TokenEmbedding
from triform.layers.losses import CrossEntropy
from triform.models import heads
from triform.models.heads import ClassificationHead, LanguageModelHead


def gradients(head: LanguageModelHead, hidden: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """The loss, and its gradients with respect to the hidden states, the table and the bias."""
    hidden = hidden.clone().requires_grad_()
    loss = head(hidden, labels, CrossEntropy(0.1))
    return [loss, *torch.autograd.grad(loss, [hidden, head.weight, head.bias])]


@pytest.fixture
def head() -> LanguageModelHead:
    torch.manual_seed(0)
    return LanguageModelHead(TokenEmbedding(37, 24, scaled=False), tied=True, bias=True, scaled=False, softcap=None, transform=None)


def test_loss_in_pieces_equals_loss_at_once(head: LanguageModelHead, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, labels = torch.randn(2, 7, 24), torch.randint(0, 37, (2, 7))
    labels[0, 3:] = -100
    at_once = gradients(head, hidden, labels)
    torch.testing.assert_close(at_once[0], CrossEntropy(0.1)(head(hidden), labels))
    monkeypatch.setattr(heads, "MAX_LOGITS", 3 * 37)
    widths: list[int] = []
    project: Callable[[torch.Tensor], torch.Tensor] = head.project
    monkeypatch.setattr(head, "project", lambda h: (widths.append(len(h)), project(h))[1])
    for pieces, whole in zip(gradients(head, hidden, labels), at_once, strict=True):
        torch.testing.assert_close(pieces, whole)
    assert widths == [3, 3, 3, 1, 1, 3, 3, 3]  # 10 labels count; each piece again in the backward pass


def test_only_labelled_positions_are_projected(head: LanguageModelHead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "project", lambda h: pytest.fail("too many") if len(h) > 1 else h.new_zeros(1, 37))
    labels = torch.full((2, 7), -100)
    labels[1, 2] = 5
    head(torch.randn(2, 7, 24), labels, CrossEntropy(0.0))


def test_no_label_is_a_loss_of_zero_with_zero_gradients(head: LanguageModelHead) -> None:
    values = gradients(head, torch.randn(1, 7, 24), torch.full((1, 7), -100))
    assert all(value.eq(0).all() for value in values)


def test_untied_has_its_own_projection() -> None:
    embedding = TokenEmbedding(37, 24, scaled=False)
    head = LanguageModelHead(embedding, tied=False, bias=False, scaled=False, softcap=None, transform=None)
    hidden = torch.randn(2, 7, 24)
    torch.testing.assert_close(head(hidden), hidden @ head.projection.weight.T)
    assert [name for name, _ in head.named_parameters()] == ["projection.weight"]


def test_classification() -> None:
    head = ClassificationHead(TokenEmbedding(37, 24, scaled=False), n_classes=5, dropout=0.5).eval()
    hidden, labels = torch.randn(3, 24), torch.tensor([0, 4, 2])
    expected = head.classifier(head.dense(hidden).tanh())
    torch.testing.assert_close(head(hidden), expected)
    torch.testing.assert_close(head(hidden, labels, CrossEntropy(0.0)), CrossEntropy(0.0)(expected, labels))
    assert head(torch.randn(2, 7, 24)).shape == (2, 7, 5)


def test_classification_needs_two_classes() -> None:
    with pytest.raises(ValueError, match=r"n_classes=1 leaves nothing to choose; .* data\.label_column"):
        ClassificationHead(TokenEmbedding(37, 24, scaled=False), n_classes=1, dropout=0.0)
