"""Pictures of a run, drawn without a display and without matplotlib's global state."""

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


def loss_curve(metrics_csv: Path, out: Path) -> None:
    """Training and validation loss over optimizer steps, the learning rate in a small panel below.

    Reads the columns `step`, `train/loss`, `validation/loss` and `train/lr`; what is absent is left
    out. The loss axis becomes logarithmic where the curve spans more than a factor of 20.
    """
    metrics = read_metrics(metrics_csv)
    steps, losses = series(metrics, "train/loss")
    validation_steps, validation = series(metrics, "validation/loss")
    lr_steps, lrs = series(metrics, "train/lr")

    figure = Figure(figsize=(7, 4.6), dpi=120, layout="constrained")
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
        upper.plot(steps, losses, color=TRAIN, linewidth=1.2, label=f"training, last {losses[-1]:.3g}")
    if validation.size:
        label = f"validation, best {np.nanmin(validation):.3g}"
        upper.plot(
            validation_steps, validation, "o-", color=VALIDATION, linewidth=1.6, markersize=4, label=label
        )
    both = np.concatenate([losses, validation])
    both = both[np.isfinite(both)]
    if both.size and both.min() > 0 and both.max() / both.min() > 20:
        upper.set_yscale("log")
    upper.set_ylabel("loss, nats per token")
    if losses.size or validation.size:
        upper.legend(frameon=False)
    _plain(upper)
    _save(figure, out)


def alignment(
    weights: Sequence[np.ndarray],
    source_tokens: Sequence[Sequence[str]],
    target_tokens: Sequence[Sequence[str]],
    out: Path,
) -> None:
    """Where the decoder looked in the source while it wrote each target token; one panel per example.

    Like Bahdanau et al. 2015, figure 3: columns are source tokens, rows target tokens, dark = much
    attention.

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
    cell = 0.19  # inches: room for one character, the usual token of the demonstration
    heights = [max(len(target), 4) for target in target_tokens]
    width = max(len(source) for source in source_tokens) * cell + 1.2
    height = sum(heights) * cell + 0.75 * len(weights)
    figure = Figure(figsize=(max(width, 4), height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(weights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, matrix, source, target in zip(panels, weights, source_tokens, target_tokens, strict=True):
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
        axes.set_xticks(range(len(source)), [_visible(token) for token in source])
        axes.set_yticks(range(len(target)), [_visible(token) for token in target])
        if max(map(len, source)) > 2:
            axes.tick_params(axis="x", rotation=90)
        axes.tick_params(length=0, labelsize=8)
        axes.xaxis.tick_top()
        axes.spines[:].set_color(GREY)
    _save(figure, out)


def _visible(token: str) -> str:
    # A dollar sign would start a formula; blanks would be lost on an axis.
    return token.replace("$", r"\$").replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _save(figure: Figure, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
