"""Pictures: what is drawn where, read back from the pixels."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib import colors
from matplotlib.image import imread

from triform.analysis.plots import TRAIN, VALIDATION, alignment, loss_curve


def has_colour(image: np.ndarray, colour: str) -> bool:
    distance = np.abs(image[..., :3] - colors.to_rgb(colour)).max(axis=-1)
    return bool((distance < 0.02).any())


def test_loss_curve_draws_both_losses(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    rows = [f"{step},{3 / step},{1e-3 * step}," for step in range(1, 30)] + ["29,,,0.2", "15,,,0.4"]
    file.write_text("step,train/loss,train/lr,validation/loss\n" + "\n".join(rows) + "\n")
    loss_curve(file, tmp_path / "plots" / "loss.png")
    image = imread(tmp_path / "plots" / "loss.png")
    assert has_colour(image, TRAIN)
    assert has_colour(image, VALIDATION)


@pytest.mark.parametrize(
    "text",
    [
        "step,train/loss,train/lr,validation/loss\n",  # stopped before the first record
        "step,train/loss,train/lr,validation/loss\n1,nan,0.1,\n2,inf,0.1,nan\n",  # diverged
        "step,validation/loss\n1,0.5\n",  # only validated
        "",
    ],
)
def test_loss_curve_of_a_short_or_bad_run_is_still_a_picture(tmp_path: Path, text: str) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(text)
    loss_curve(file, tmp_path / "loss.png")
    assert imread(tmp_path / "loss.png").shape[-1] == 4


def test_alignment_puts_source_in_columns_and_target_in_rows(tmp_path: Path) -> None:
    weights = np.zeros((3, 5))
    weights[0, 4] = weights[1, 4] = weights[2, 4] = 1  # every target token looks at the last source token
    alignment([weights], [list("3 $_^")], [list("abc")], tmp_path / "a.png")
    image = imread(tmp_path / "a.png")[..., :3]
    dark = np.abs(image - colors.to_rgb("#08306b")).max(axis=-1) < 0.02
    rows, columns = np.nonzero(dark)
    pale = np.abs(image - colors.to_rgb("#f7fbff")).max(axis=-1) < 0.005
    assert columns.min() >= np.nonzero(pale)[1].max() - 1, "the dark column is right of the pale cells"
    across, down = np.ptp(columns) + 1, np.ptp(rows) + 1
    assert 2.7 < down / across < 3.3, "one column, three rows, square cells"


def test_alignment_of_examples_of_different_sizes_and_long_tokens(tmp_path: Path) -> None:
    sizes = [(2, 9), (12, 3)]
    weights = [np.full((rows, columns), 1 / columns) for rows, columns in sizes]
    sources = [["source" * 3] * columns for _, columns in sizes]
    targets = [["目标\n"] * rows for rows, _ in sizes]
    alignment(weights, sources, targets, tmp_path / "a.png")
    assert imread(tmp_path / "a.png").shape[0] > 300


def test_alignment_refuses_weights_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weights of shape \(5, 3\) do not fit 3 target and 5 source tokens"):
        alignment([np.zeros((5, 3))], [list("12345")], [list("abc")], tmp_path / "a.png")
    with pytest.raises(ValueError, match="no example to draw"):
        alignment([], [], [], tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
