from functools import partial

import pytest
import torch
from torch import nn

from tests.models.composed import FILES, build
from triform.layers.embedding import TokenEmbedding
from triform.layers.init import multipliers
from triform.layers.losses import CrossEntropy
from triform.layers.patches import PatchEmbedding
from triform.models import heads
from triform.models.heads import ClassificationHead, HiddenStates, LanguageModelHead, Transform, TwoHeads

TANH = partial(Transform, activation=nn.Tanh, norm=None, bias=True)


def table() -> TokenEmbedding:
    return TokenEmbedding(37, 24, scaled=False)


language_model = partial(LanguageModelHead, tied=True, bias=True, scaled=False, softcap=None, transform=None)


def gradients(head: LanguageModelHead, hidden: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """The loss, and its gradients with respect to the hidden states, the table and the bias."""
    hidden = hidden.clone().requires_grad_()
    loss = head(hidden, labels, CrossEntropy(0.1))
    return [loss, *torch.autograd.grad(loss, [hidden, head.weight, head.bias])]


@pytest.fixture
def head() -> LanguageModelHead:
    torch.manual_seed(0)
    return language_model(table())


@pytest.fixture
def in_threes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has three tokens."""
    monkeypatch.setattr(heads, "MAX_LOGITS_ON_CPU", 3 * 37)
    monkeypatch.setattr(heads, "MIN_TOKENS_ON_CPU", 1)


LOSSES = {
    "plain": CrossEntropy(0.0),
    "smoothed": CrossEntropy(0.1, "annotated", pad_id=2, z_loss=1e-2),
    "weighted": CrossEntropy(0.0, class_weights=[0.1 * i for i in range(31)]),
}


@pytest.mark.usefixtures("in_threes")
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("frozen", [None, "weight", "bias", "hidden"])
def test_loss_in_pieces_equals_loss_at_once(loss: CrossEntropy, tied: bool, frozen: str | None) -> None:
    """With a bound, a scale, a transform and rows that pad the table; the gradient takes part in a larger one."""
    torch.manual_seed(0)
    embedding = TokenEmbedding(37, 24, scaled=False, n_tokens=31)
    dense = partial(Transform, activation=nn.Tanh, norm=nn.LayerNorm, bias=True)
    head = LanguageModelHead(embedding, tied=tied, bias=True, scaled=True, softcap=3.0, transform=dense)
    nn.init.normal_(head.bias)
    hidden, labels = torch.randn(2, 7, 24), torch.randint(0, 31, (2, 7))
    labels[0, 3:] = -100
    learned = {"hidden": hidden, "weight": head.weight, "bias": head.bias} | dict(head.transform.named_parameters())
    for name, tensor in learned.items():
        tensor.requires_grad_(name != frozen)
    learned.pop(frozen, None)
    counted = labels != -100
    at_once = loss(head.project(hidden[counted]), labels[counted])
    in_pieces = head(hidden, labels, loss)
    torch.testing.assert_close(in_pieces, at_once)
    expected = torch.autograd.grad(at_once * 0.3, list(learned.values()))
    for ours, theirs in zip(torch.autograd.grad(in_pieces * 0.3, list(learned.values())), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("in_threes")
def test_a_piece_at_a_time_and_none_twice(head: LanguageModelHead) -> None:
    widths: list[int] = []

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        widths.append(len(labels))
        return CrossEntropy(0.0)(logits, labels)

    labels = torch.randint(0, 37, (2, 7))
    labels[0, 3:] = -100
    total = head(torch.randn(2, 7, 24, requires_grad=True), labels, loss)
    total.backward()
    assert widths == [3, 3, 3, 1]  # 10 labels count
    with pytest.raises(RuntimeError, match="once"):
        total.backward()


@pytest.mark.usefixtures("in_threes")
def test_pieces_of_double_precision_are_added_up_in_it() -> None:
    embedding = TokenEmbedding(37, 24, scaled=False).double()
    head = LanguageModelHead(embedding, tied=True, bias=False, scaled=False, softcap=None, transform=None)
    hidden, labels = torch.randn(2, 7, 24, dtype=torch.float64, requires_grad=True), torch.randint(0, 37, (2, 7))

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, labels, reduction="sum")

    torch.testing.assert_close(head(hidden, labels, loss), loss(head(hidden).flatten(0, 1), labels.flatten()))


@pytest.mark.usefixtures("in_threes")
def test_in_pieces_without_a_gradient(head: LanguageModelHead) -> None:
    hidden, labels = torch.randn(2, 7, 24), torch.randint(0, 37, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(
            head(hidden, labels, CrossEntropy(0.0)), CrossEntropy(0.0)(head(hidden), labels), check_stride=False
        )


@pytest.mark.usefixtures("in_threes")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_pieces_under_mixed_precision(head: LanguageModelHead, dtype: torch.dtype) -> None:
    """Pieces as exact as one: against float32 both have the error of the type."""
    hidden, labels = torch.randn(2, 7, 24), torch.randint(0, 37, (2, 7))
    exact = gradients(head, hidden, labels)
    with torch.autocast("cpu", dtype):
        pieces = gradients(head, hidden, labels)
    for ours, theirs in zip(pieces, exact, strict=True):
        assert ours.dtype == torch.float32
        error = (ours - theirs).abs().max() / theirs.abs().max()
        assert error < 8 * torch.finfo(dtype).eps


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
    head = ClassificationHead(table(), n_classes=5, dropout=0.5, transform=TANH).eval()
    hidden, labels = torch.randn(3, 24), torch.tensor([0, 4, 2])
    expected = head.classifier(head.transform.dense(hidden).tanh())
    torch.testing.assert_close(head(hidden), expected)
    torch.testing.assert_close(head(hidden, labels, CrossEntropy(0.0)), CrossEntropy(0.0)(expected, labels))
    assert head(torch.randn(2, 7, 24)).shape == (2, 7, 5)


def test_classification_without_a_transform_is_one_projection() -> None:
    head = ClassificationHead(table(), n_classes=5, dropout=0.5, transform=None)
    assert [name for name, _ in head.named_parameters()] == ["classifier.weight", "classifier.bias"]
    torch.manual_seed(0)
    hidden = torch.ones(1000, 24)
    nn.init.constant_(head.classifier.weight, 1 / 24)
    nn.init.zeros_(head.classifier.bias)
    assert head(hidden).var().item() == pytest.approx(1 / 24, rel=0.1)  # 3 / 24 if it were dropped twice


def test_classification_needs_two_classes() -> None:
    with pytest.raises(ValueError, match=r"n_classes=1 leaves nothing to choose; .* data\.label_column"):
        ClassificationHead(table(), n_classes=1, dropout=0.0, transform=None)


def test_hidden_states_pass_as_they_are_or_through_a_pooler() -> None:
    hidden = torch.randn(2, 7, 24)
    assert HiddenStates(table(), transform=None)(hidden) is hidden
    pooler = HiddenStates(table(), transform=TANH)
    torch.testing.assert_close(pooler(hidden), pooler.transform.dense(hidden).tanh())
    assert (pooler.flops(9), pooler.n_logits(2, 9)) == (2 * 24 * 24, 0)
    with pytest.raises(ValueError, match=r"no logits to take a loss of; set model/head to language_model"):
        pooler(hidden, torch.zeros(2, 7, dtype=torch.long), CrossEntropy(0.0))


def test_one_of_two_heads_gives_the_loss() -> None:
    embedding = table()
    text = partial(ClassificationHead, n_classes=2, dropout=0.0, transform=TANH)
    head = TwoHeads(embedding, main=language_model, text=text)
    hidden, labels = torch.randn(2, 7, 24), torch.randint(0, 37, (2, 7))
    torch.testing.assert_close(head(hidden), hidden @ embedding.table.weight.T)
    torch.testing.assert_close(head(hidden, labels, CrossEntropy(0.0)), CrossEntropy(0.0)(head(hidden), labels))
    assert head.text(hidden[:, 0]).shape == (2, 2)
    assert (head.flops(9), head.n_logits(2, 9)) == (2 * 37 * 24 * 9, 2 * 9 * 37)


def test_transform_is_norm_of_activation_of_dense() -> None:
    transform = Transform(24, activation=nn.GELU, norm=nn.LayerNorm, bias=False)
    hidden = torch.randn(2, 7, 24)
    expected = nn.functional.layer_norm(nn.functional.gelu(hidden @ transform.dense.weight.T), (24,))
    torch.testing.assert_close(transform(hidden), expected)


@pytest.mark.parametrize("head", [name for group, name in FILES if group == "head"])
def test_mup_knows_what_of_a_head_widens(head: str) -> None:
    """Logits are divided by the width, and rates by it in what is hidden on both sides."""
    model = build("encoder", f"model/head={head}", "model/init=mup", "model.init.base_width=12")
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    rates = {name: rate for name, rate in multipliers(model).items() if name.startswith("head.")}
    for name, rate in rates.items():
        assert rate == (0.5 if name.endswith("dense.weight") else 1.0), name
    for module in model.head.modules():
        assert getattr(module, "multiplier", 0.5) == 0.5


def test_a_head_of_tokens_needs_tokens() -> None:
    patches = PatchEmbedding(24, image_size=8, patch_size=2, channels=1)
    with pytest.raises(ValueError, match=r"PatchEmbedding has no tokens to choose from; set model/head to"):
        language_model(patches)
