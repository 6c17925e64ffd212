import pytest
import torch

from triform.layers.losses import SMOOTHINGS, BinaryCrossEntropy, CrossEntropy, SquaredError

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -2.0]])


def test_known_values() -> None:
    """Logits [2, 1, 0, -2], target 0: 0.419717 nats; smoothed by 0.1, spread over all four: 0.594717."""
    assert CrossEntropy(0.0)(LOGITS, torch.tensor([0])).item() == pytest.approx(0.419717, abs=1e-6)
    assert CrossEntropy(0.1)(LOGITS, torch.tensor([0])).item() == pytest.approx(0.594717, abs=1e-6)


@pytest.mark.parametrize(
    ("smoothing", "expected"), [("torch", 0.594717), ("fairseq", 0.653050), ("annotated", 0.569717)]
)
def test_published_definitions_of_smoothing(smoothing: str, expected: float) -> None:
    """Logits [2, 1, 0, -2], target 0, e = 0.1; where there is padding it is class 3."""
    loss = CrossEntropy(0.1, smoothing, pad_id=3)
    assert loss(LOGITS, torch.tensor([0])).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_smoothing_is_a_distribution_over_the_classes(smoothing: str) -> None:
    """The gradient to the logits, softmax less target, gives the target away: it sums to 1."""
    logits = torch.zeros(1, 5, requires_grad=True)
    CrossEntropy(0.3, smoothing, pad_id=4)(logits, torch.tensor([1])).backward()
    assert logits.grad is not None
    target = 1 / 5 - logits.grad[0]
    others = {"torch": 0.06, "fairseq": 0.075, "annotated": 0.1}[smoothing]
    true = {"torch": 0.76, "fairseq": 0.7, "annotated": 0.7}[smoothing]
    padding = 0 if smoothing == "annotated" else others
    torch.testing.assert_close(target, torch.tensor([others, true, others, others, padding]))


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_ignored_labels_count_nothing_in_any_definition(smoothing: str) -> None:
    logits, labels = torch.randn(7, 5), torch.tensor([1, -100, 3, -100, -100, 0, 2])
    loss = CrossEntropy(0.2, smoothing, pad_id=4, z_loss=0.01)
    torch.testing.assert_close(loss(logits, labels), loss(logits[labels >= 0], labels[labels >= 0]))


def test_z_loss_is_the_square_of_the_normaliser() -> None:
    """PaLM, section 5: log Z of [2, 1, 0, -2] is 2.419717."""
    plain, with_z = (CrossEntropy(0.0, z_loss=z)(LOGITS, torch.tensor([0])).item() for z in (0.0, 0.5))
    assert with_z - plain == pytest.approx(0.5 * 2.419717**2, abs=1e-5)


def test_class_weights_are_those_of_torch() -> None:
    logits, labels = torch.randn(6, 3), torch.tensor([0, 2, 1, 1, -100, 2])
    expected = torch.nn.functional.cross_entropy(
        logits, labels, weight=torch.tensor([0.5, 2.0, 3.0]), reduction="sum", ignore_index=-100
    )
    torch.testing.assert_close(CrossEntropy(0.0, class_weights=[0.5, 2.0, 3.0])(logits, labels), expected)


def test_yes_or_no_for_each_class_is_that_of_torch() -> None:
    logits, labels = torch.randn(2, 3), torch.tensor([[True, False, True], [False, False, False]])
    expected = torch.nn.BCEWithLogitsLoss(reduction="sum")(logits, labels.float())
    torch.testing.assert_close(BinaryCrossEntropy()(logits, labels), expected)


def test_a_squared_error_leaves_out_what_has_no_target() -> None:
    outputs = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    loss = SquaredError()(outputs, torch.tensor([0.0, torch.nan, 5.0]))
    loss.backward()
    assert loss.item() == 5
    assert outputs.grad is not None
    assert outputs.grad.tolist() == [2, 0, -4]


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"smoothing": "keras"}, r"smoothing='keras' is unknown; set task\.smoothing to torch, fairseq, annotated"),
        ({"smoothing": "annotated"}, r"smoothing='annotated' leaves out padding.*set task\.smoothing to torch"),
        ({"z_loss": -1.0}, r"z_loss=-1\.0 is not finite and at least 0; set task\.z_loss"),
        ({"class_weights": [1.0, -2.0]}, r"class_weights=\[1\.0, -2\.0\] are not all.*task\.class_weights"),
        (
            {"class_weights": [1.0], "label_smoothing": 0.1},
            r".* set task\.label_smoothing=0 or task\.class_weights=null",
        ),
    ],
)
def test_refusals(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"CrossEntropy: {message}"):
        CrossEntropy(**{"label_smoothing": 0.0} | arguments)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_pieces_add_up_and_have_one_gradient(smoothing: str) -> None:
    """So the head may take a loss piece by piece, and a batch may be cut."""
    loss = CrossEntropy(0.2, smoothing, pad_id=4, z_loss=0.01)
    logits, labels = torch.randn(7, 5, dtype=torch.float64), torch.tensor([1, -100, 3, 2, -100, 0, 2])
    whole, cut = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    total = loss(whole, labels)
    parts = sum(loss(h, y) for h, y in zip(cut.split(3), labels.split(3), strict=True))
    torch.testing.assert_close(total, parts)
    total.backward()
    parts.backward()
    torch.testing.assert_close(whole.grad, cut.grad)
