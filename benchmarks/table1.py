"""Table 1 of "Attention Is All You Need", measured: what a layer costs, what must wait for what, how far tokens are.

    python benchmarks/table1.py [PICTURE.png]

Four layers of one width, each as triform has it: self-attention, an LSTM, a convolution, and self-attention within a
window; of the latter also one whose queries are taken in pieces of the window's size, which triform does (by 512) where
a mask has more than 2^22 pairs, and below leaves out nothing. Over the length n it measures

- FLOPs of the forward pass of a row, as torch counts the matrix products that are really taken, without projections
  before and after attention (which are 8 n d^2 more);
- its time, one row on one thread: the median of several, the layers by turns;
- sequential operations: the matrix products on the longest chain of which each needs the one before it;
- path length: how many times a layer's operation (of an LSTM: its cell) must be applied until the last output depends
  on the first input, by its gradient. For convolutions once as they are and once dilated 1, 2, 4, ... as in ByteNet.

Prints tables in Markdown beside the paper's column, with the exponent of n between the two greatest lengths, and draws
all four.
"""

import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from triform.layers import kernels
from triform.layers.attention import Attention
from triform.layers.convolution import Convolution
from triform.layers.lstm import LSTM
from triform.layers.masks import AttentionMask
from triform.training.environment import environment

matplotlib.use("Agg")
import matplotlib.pyplot as plt

D, HEADS, KERNEL, WINDOW = 256, 4, 3, 64
LENGTHS = (64, 128, 256, 512, 1024, 2048)
SMALL = 16  # width where only dependence is asked for
STEPS = (8, 16, 32, 64, 128, 256)  # lengths there
ROUNDS = 5

NAMES = ("self-attention", "recurrent", "convolutional", "restricted self-attention", "restricted, in pieces")
PAPER = {  # complexity per layer, sequential operations, longest path
    "self-attention": ("n^2 d", "1", "1"),
    "recurrent": ("n d^2", "n", "n"),
    "convolutional": ("k n d^2", "1", "n / k, dilated log n"),
    "restricted self-attention": ("r n d", "1", "n / r"),
    "restricted, in pieces": ("r n d", "1", "n / r"),
}
THEORY: dict[str, Callable[[int], float]] = {  # FLOPs, 2 for each multiplication with its addition
    "self-attention": lambda n: 4 * n**2 * D,  # two products
    "recurrent": lambda n: 16 * n * D**2,  # two matrices for each of four gates
    "convolutional": lambda n: 2 * KERNEL * n * D**2,
    "restricted self-attention": lambda n: 4 * (WINDOW + 1) * n * D,  # with half of it on either side
}
PATHS: dict[str, Callable[[int], float]] = {
    "self-attention": lambda n: 1,
    "recurrent": lambda n: n,
    "convolutional": lambda n: (n - 1) / (KERNEL // 2),
    "convolutional, dilated": lambda n: math.log2(n),
    "restricted self-attention": lambda n: (n - 1) / (WINDOW_OF_PATHS // 2),
}
WINDOW_OF_PATHS = 16


def attention(d: int, window: int | None) -> nn.Module:
    return Attention(
        d,
        HEADS,
        HEADS,
        d // HEADS,
        group_size=None,
        bias=False,
        out_bias=None,
        qk_norm=None,
        scale=None,
        softcap=None,
        sinks=False,
        window=window,
        weights_dropout=0.0,
        kernel="sdpa",
    )


def convolution(d: int, dilation: int = 1) -> Convolution:
    made = Convolution(d, d, KERNEL, dilation=dilation, causal=False, variance=1.0, normalised=False)
    for name, value in made.named_parameters():
        made.initialise_parameter(name, value.data, torch.Generator().manual_seed(0))
    return made


def layers(d: int, window: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Each as a function of a row."""
    full, near = attention(d, None), attention(d, window)
    recurrent, filters = LSTM(d, d), convolution(d)
    mask = AttentionMask()

    def in_pieces(x: Tensor) -> Tensor:
        usual = kernels.MAX_MASK, kernels.PIECE
        kernels.MAX_MASK, kernels.PIECE = 0, window
        try:
            return near.to(x.dtype)(x, mask)
        finally:
            kernels.MAX_MASK, kernels.PIECE = usual

    return {
        "self-attention": lambda x: full.to(x.dtype)(x, mask),
        "recurrent": lambda x: recurrent.to(x.dtype)(x)[0],
        "convolutional": lambda x: filters.to(x.dtype)(x),
        "restricted self-attention": lambda x: near.to(x.dtype)(x, mask),
        "restricted, in pieces": in_pieces,
    }


def flops(name: str, layer: Callable[[Tensor], Tensor], n: int) -> int:
    """In double precision, where the LSTM's matrices are torch's own products and not a library's."""
    x = torch.randn(1, n, D, dtype=torch.float64)
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with FlopCounterMode(display=False, custom_mapping={fused: of_fused}) as counter, torch.no_grad():
        layer(x)
    return int(counter.get_total_flops()) - (0 if name in ("recurrent", "convolutional") else 8 * n * D**2)


def of_fused(q: Sequence[int], k: Sequence[int], v: Sequence[int], *others: Any, **more: Any) -> int:
    """Of the CPU's fused attention, which torch does not count by itself; it takes all pairs that it is given."""
    return sdpa_flop_count(q, k, v)


def times(of: dict[str, Callable[[Tensor], Tensor]], n: int) -> dict[str, float]:
    """Seconds of a forward pass, by the processor's clock."""
    x = torch.randn(1, n, D)
    taken: dict[str, list[float]] = {name: [] for name in of}
    with torch.inference_mode():
        for turn in range(ROUNDS + 1):
            for name, layer in of.items():
                repeats = 1 if turn == 0 else max(1, 512 // n)
                began = time.process_time()
                for _ in range(repeats):
                    layer(x)
                if turn:
                    taken[name].append((time.process_time() - began) / repeats)
    return {name: statistics.median(values) for name, values in taken.items()}


class Chain(TorchDispatchMode):
    """Of each tensor how many matrix products had to be taken one after another to have it."""

    PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product", "linear")

    def __init__(self) -> None:
        super().__init__()
        self.depth: dict[int, int] = {}
        self.kept: list[Any] = []  # so that no memory is used again under another tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        reads = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        depth = max((self.of(t) for t in reads), default=0)
        depth += func.overloadpacket.__name__.startswith(self.PRODUCTS)
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.kept.append(storage)
                self.depth[storage._cdata] = max(depth, self.depth.get(storage._cdata, 0))
        return out

    def of(self, tensor: Tensor) -> int:
        return self.depth.get(tensor.untyped_storage()._cdata, 0)


def sequential(layer: Callable[[Tensor], Tensor], n: int) -> int:
    x = torch.randn(1, n, SMALL, dtype=torch.float64)
    with torch.no_grad(), Chain() as chain:
        return chain.of(layer(x))


def steps_until_seen(apply: Callable[[Tensor, Tensor, int], Tensor], n: int) -> int:
    """How many times an operation is applied until the last place's state depends on the first place's input.

    Args:
        apply: the next state of all places, given the input, the state, and how often it has been applied.
    """
    x = torch.randn(1, n, SMALL, dtype=torch.float64, requires_grad=True)
    state = x
    for i in range(n + 1):
        state = apply(x, state, i)
        (gradient,) = torch.autograd.grad(state[:, -1].sum(), x, retain_graph=True)
        if gradient[:, 0].ne(0).any():
            return i + 1
    raise AssertionError("the first token never reaches the last")


def paths(of: dict[str, Callable[[Tensor], Tensor]], n: int) -> dict[str, int]:
    cell = nn.LSTMCell(SMALL, SMALL, dtype=torch.float64)

    def recur(x: Tensor, state: Tensor, i: int) -> Tensor:
        """Every place at once reads its input and the state before it, as far as that is known by now."""
        before = torch.zeros_like(x[0]) if i == 0 else nn.functional.pad(state[0, :-1], (0, 0, 1, 0))
        return cell(x[0], (before, torch.zeros_like(before)))[0][None]

    dilated = [convolution(SMALL, 2**i).double() for i in range(max(STEPS).bit_length())]
    found = {
        name: steps_until_seen(lambda x, state, i, layer=layer: layer(state), n)
        for name, layer in of.items()
        if name in PATHS and name != "recurrent"
    }
    return found | {
        "recurrent": steps_until_seen(recur, n),
        "convolutional, dilated": steps_until_seen(lambda x, state, i: dilated[i](state), n),
    }


def exponent(values: Sequence[float], lengths: Sequence[int]) -> float:
    """Of n, between the two greatest lengths."""
    return math.log(values[-1] / values[-2]) / math.log(lengths[-1] / lengths[-2])


def table(title: str, rows: dict[str, list[float]], lengths: Sequence[int], paper: dict[str, str], shown: str) -> None:
    print(f"\n{title}\n\n| layer | paper | {' | '.join(f'n = {n}' for n in lengths)} | exponent of n |")
    print(f"|{' --- |' * (len(lengths) + 3)}")
    for name, values in rows.items():
        cells = " | ".join(format(value, shown) for value in values)
        print(f"| {name} | {paper.get(name, 'log n')} | {cells} | {exponent(values, lengths):.2f} |", flush=True)


def draw(
    measured: Sequence[tuple[str, dict[str, list[float]], Sequence[int], dict[str, Callable[[int], float]]]], out: str
) -> None:
    """A panel for each; dots and lines are measured, dashes the theory."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.4), layout="constrained")
    colors = dict(zip([*NAMES, "convolutional, dilated"], plt.cm.tab10.colors, strict=False))
    marks = dict(zip(colors, "osv^Dx", strict=True))
    for axis, (title, rows, lengths, theory) in zip(axes.flat, measured, strict=True):
        for name, values in rows.items():
            axis.plot(lengths, values, marker=marks[name], markersize=4, color=colors[name], label=name)
            if name in theory:
                axis.plot(lengths, [theory[name](n) for n in lengths], "--", color=colors[name], linewidth=1, alpha=0.6)
        axis.set(title=title, xlabel="n (tokens)")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.grid(alpha=0.3)
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(out, dpi=120)


def main(picture: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    began, hardware = time.perf_counter(), environment(0)["hardware"]
    print(f"{hardware['cpu']}, one thread, {platform.system()}; python benchmarks/table1.py")
    print(f"d = {D}, {HEADS} heads, k = {KERNEL}, r = {WINDOW} (path length: r = {WINDOW_OF_PATHS}); one row")
    wide = layers(D, WINDOW)
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for n in LENGTHS:  # first, before the layers turn to double precision
        for name, value in times(wide, n).items():
            seconds[name].append(1000 * value)
    counted: dict[str, list[float]] = {name: [flops(name, wide[name], n) / 1e6 for n in LENGTHS] for name in NAMES}
    narrow = layers(SMALL, WINDOW_OF_PATHS)
    chains: dict[str, list[float]] = {name: [sequential(narrow[name], n) for n in STEPS] for name in NAMES}
    found = [paths(narrow, n) for n in STEPS]
    far: dict[str, list[float]] = {name: [of[name] for of in found] for name in PATHS}
    columns = [{name: paper[i] for name, paper in PAPER.items()} for i in range(3)]
    columns[2]["convolutional"] = "n / k"
    table("MFLOPs per layer", counted, LENGTHS, columns[0], ",.1f")
    table("Milliseconds per layer", seconds, LENGTHS, columns[0], ".2f")
    table("Sequential operations (matrix products)", chains, STEPS, columns[1], ",.0f")
    table("Path length", far, STEPS, columns[2], ",.0f")
    millions = {name: (lambda n, of=of: of(n) / 1e6) for name, of in THEORY.items()}
    draw(
        [
            ("MFLOPs per layer (dashed: theory)", counted, LENGTHS, millions),
            ("milliseconds per layer", seconds, LENGTHS, {}),
            ("sequential matrix products", chains, STEPS, {}),
            ("path length (dashed: theory)", far, STEPS, PATHS),
        ],
        picture,
    )
    print(f"\n{time.perf_counter() - began:.0f} seconds; {picture}")


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["table1.png"]))
