"""Pictures of a run, drawn without a display and without matplotlib's global state."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from triform.analysis.runs import read_metrics, series

# Two hues that also differ in lightness, so that print and colour-blind readers tell them apart.
TRAIN = "#4c78a8"
VALIDATION = "#d1495b"
GREY = "#666666"

CAPTION = "attention: from target (rows) to source (columns); darker is more"


def loss_curve(metrics_csv: Path, out: Path) -> None:
    """Training and validation loss over optimizer steps, the learning rate in a small panel below.

    Reads the columns `step`, `train/loss`, `validation/loss` and `train/lr`; what is absent is left
    out. The loss axis becomes logarithmic where the curve spans more than a factor of 20.
    """
    metrics = read_metrics(metrics_csv)
    steps, losses = series(metrics, "train/loss")
    validation_steps, validation = series(metrics, "validation/loss")
    lr_steps, lrs = series(metrics, "train/lr")

    figure = Figure(figsize=(7, 4.6), dpi=120)
    figure.subplots_adjust(0.12, 0.11, 0.98, 0.97, hspace=0.14)  # to find them, matplotlib would draw all twice
    FigureCanvasAgg(figure)
    if lrs.size:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        lower.plot(lr_steps, lrs, color=GREY, linewidth=1.2)
        lower.set_ylabel("learning rate")
        lower.set_ylim(bottom=0)
        lower.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
        _plain(lower)
    else:
        upper = lower = figure.subplots()
    lower.set_xlabel("optimizer step")

    if losses.size:
        upper.plot(
            steps,
            losses,
            color=TRAIN,
            linewidth=1.2,
            label=f"training, as minimised (dropout, smoothing), last {losses[-1]:.3g}",
        )
    if validation.size:
        label = f"validation, best {np.nanmin(validation):.3g}"
        upper.plot(validation_steps, validation, "o-", color=VALIDATION, linewidth=1.6, markersize=4, label=label)
    both = np.concatenate([losses, validation])
    both = both[np.isfinite(both)]
    if both.size and both.min() > 0 and both.max() / both.min() > 20:
        upper.set_yscale("log")
    upper.set_ylabel("loss, nats")
    if losses.size or validation.size:
        upper.legend(frameon=False)
    _plain(upper)
    save(figure, out)


def alignment(
    weights: Sequence[np.ndarray],
    source_tokens: Sequence[Sequence[str]],
    target_tokens: Sequence[Sequence[str]],
    out: Path,
) -> None:
    """Where the decoder looked in the source while it wrote each target token; one panel per example.

    Like Bahdanau et al. 2015, figure 3: columns are source tokens, rows target tokens. All cells are
    of one size; white is no attention, the darkest blue all of it.

    Args:
        weights: per example (target tokens, source tokens), rows summing to 1 (a mean over heads).

    Raises:
        ValueError: there is no example, or a matrix does not fit its tokens.
    """
    if not weights:
        raise ValueError("alignment: no example to draw; give at least one matrix of weights")
    for matrix, source, target in zip(weights, source_tokens, target_tokens, strict=True):
        if matrix.shape != (len(target), len(source)):
            raise ValueError(
                f"alignment: weights of shape {tuple(matrix.shape)} do not fit {len(target)} target and "
                f"{len(source)} source tokens; give rows for the target, columns for the source"
            )
    cell, left, top, gap, bottom = 0.19, 0.3, 0.62, 0.4, 0.12  # inches; a cell has room for one character
    letter = 0.08  # of a longer token's label, upright above the source, level beside the target
    longest = max(len(token) for source in source_tokens for token in source)
    if longest > 1:
        top, gap = top + letter * longest, gap + letter * longest
    left += letter * max(len(token) for target in target_tokens for token in target)
    n_columns = max(len(source) for source in source_tokens)
    n_rows = sum(len(target) for target in target_tokens)
    width = max(left + n_columns * cell + 0.2, 4.6)
    height = top + n_rows * cell + (len(weights) - 1) * gap + bottom
    figure = Figure(figsize=(width, height), dpi=120)
    FigureCanvasAgg(figure)
    figure.text(0.1 / width, 1 - 0.1 / height, CAPTION, va="top", fontsize=8, color=GREY)
    above = top
    for matrix, source, target in zip(weights, source_tokens, target_tokens, strict=True):
        across, down = len(source) * cell, len(target) * cell
        place = (left / width, 1 - (above + down) / height, across / width, down / height)
        axes = figure.add_axes(place)
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_xticks(range(len(source)), [_visible(token) for token in source])
        axes.set_yticks(range(len(target)), [_visible(token) for token in target])
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelsize=8)
        for label, token in zip(axes.get_xticklabels(), source, strict=True):
            label.set_rotation(90 if len(token) > 1 else 0)
        axes.spines[:].set_color(GREY)
        above += down + gap
    save(figure, out)


def _visible(token: str) -> str:
    # A dollar sign would start a formula; blanks would be lost on an axis.
    return token.replace("$", r"\$").replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def save(figure: Figure, out: Path) -> None:
    """As a picture; a character that the font lacks becomes a box."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(out)
