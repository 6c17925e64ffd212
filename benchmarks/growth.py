"""How time and memory of a training step grow, and what saves memory.

    python benchmarks/growth.py [loss] [attention] [recompute] [sizes]

Each figure is of a process of its own on one thread, which keeps freed memory as a rank of a run does: seconds of
processor time, the least of three, and MB by which the peak grew over what stood before the step. `sizes` draws
docs/growth.png: one of length, width, depth and vocabulary at a time, beside the FLOPs that `triform inspect` counts.
"""

import multiprocessing as mp
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from speed import Shape, built, own_loss

Step = Callable[[], Any]
"""Forward and backward."""

BASE = Shape(layers=4, width=256, heads=4, length=512, batch=2, vocab=4096)
SIZES = {
    "length": (128, 256, 512, 1024, 2048),
    "width": (128, 256, 512, 1024),
    "layers": (1, 2, 4, 8, 16),
    "vocab": (1024, 4096, 16384, 65536),
}


def peak() -> float:
    """MB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(line: Any, make: Callable[..., Step], arguments: tuple[Any, ...]) -> None:
    """Of a process: seconds and MB of a step, which `make` makes of `arguments`."""
    import torch

    from triform.training.memory import keep_memory

    torch.set_num_threads(1)
    keep_memory()
    torch.manual_seed(0)
    step, before = make(*arguments), peak()
    seconds = []
    for _ in range(3):
        began = time.process_time()
        step()
        seconds.append(time.process_time() - began)
    line.send((min(seconds), peak() - before))


def alone(make: Callable[..., Step], *arguments: Any) -> tuple[float, float]:
    """`measured`, in a process of its own."""
    processes = mp.get_context("forkserver")
    processes.set_forkserver_preload(["torch", "triform.run.parts"])
    line, other = processes.Pipe()
    process = processes.Process(target=measured, args=(other, make, arguments))
    process.start()
    seconds, memory = line.recv()
    process.join()
    return seconds, memory


# What is measured


def loss(vocabulary: int, in_pieces: bool) -> Step:
    """Of 1024 tokens of width 512."""
    import torch
    import torch.nn.functional as F

    from triform.layers.embedding import TokenEmbedding
    from triform.layers.losses import CrossEntropy
    from triform.models.heads import LanguageModelHead

    table = TokenEmbedding(vocabulary, 512, scaled=False)
    torch.nn.init.normal_(table.table.weight)
    head = LanguageModelHead(table, tied=True, bias=False, scaled=False, softcap=None, transform=None)
    hidden, labels = torch.randn(1024, 512, requires_grad=True), torch.randint(0, vocabulary, (1024,))

    def step() -> None:
        hidden.grad = head.weight.grad = None
        if in_pieces:
            head(hidden, labels, CrossEntropy(0.0)).backward()
        else:
            F.cross_entropy(F.linear(hidden, head.weight), labels, reduction="sum").backward()

    return step


def attention(kind: str, length: int) -> Step:
    """Of one row, 4 heads of 32."""
    import torch

    from triform.layers.kernels import sdpa
    from triform.layers.masks import AttentionMask

    q, k, v = (torch.randn(1, 4, length, 32, requires_grad=True) for _ in range(3))
    real = torch.arange(length)[None] >= length // 8
    documents = torch.arange(length)[None] // (length // 4)
    masks = {
        "causal": AttentionMask(causal=True),
        "padded": AttentionMask(padding=real),
        "window of 256": AttentionMask(causal=True, window=256),
        "packed": AttentionMask(causal=True, documents=documents),
    }
    bias = torch.randn(1, 4, length, length) if kind == "bias" else None
    mask = masks.get(kind, masks["causal"])

    def step() -> None:
        q.grad = k.grad = v.grad = None
        sdpa(q, k, v, mask, bias, 0.0).sum().backward()

    return step


def training(shape: Shape, mode: str = "none") -> Step:
    """Of the default decoder."""
    import torch

    from triform.layers.block import Block
    from triform.layers.recompute import recompute

    model = built(shape, "decoder").train()
    recompute([module for module in model.modules() if isinstance(module, Block)], mode)
    batch = torch.randint(0, shape.vocab, (1, shape.batch, shape.length + 1))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        own_loss(model, batch).backward()

    return step


# Tables and the picture


def losses() -> Iterator[str]:
    yield "| vocabulary | at once | in pieces | time | memory |\n| --- | --- | --- | --- | --- |"
    for vocabulary in (4096, 32768, 131072):
        (slow, large), (seconds, memory) = alone(loss, vocabulary, False), alone(loss, vocabulary, True)
        yield (
            f"| {vocabulary:,} | {slow:.2f} s, {large:,.0f} MB | {seconds:.2f} s, {memory:,.0f} MB | "
            f"{seconds / slow:.2f} | {memory / large:.2f} |"
        )


def attentions() -> Iterator[str]:
    lengths = (2048, 4096, 8192)
    yield f"| mask | {' | '.join(f'{length} tokens' for length in lengths)} |\n| --- |{' --- |' * len(lengths)}"
    for kind in ("causal", "padded", "window of 256", "packed", "bias"):
        found = [alone(attention, kind, length) for length in lengths]
        yield f"| {kind} | {' | '.join(f'{memory:,.0f} MB, {seconds:.2f} s' for seconds, memory in found)} |"


def recomputed() -> Iterator[str]:
    shape = Shape(layers=8, width=256, heads=4, length=512, batch=4, vocab=1024)
    yield "| `trainer.activation_checkpointing` | a step | memory |\n| --- | --- | --- |"
    for mode in ("none", "selective", "block"):
        seconds, memory = alone(training, shape, mode)
        yield f"| {mode} | {seconds:.2f} s | {memory:,.0f} MB |"


def sizes() -> Iterator[str]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    from triform.models.cost import flops_per_token

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    places = figure.subplots(2, len(SIZES), sharex="col")
    yield "| | seconds a step | FLOPs, billions | memory |\n| --- | --- | --- | --- |"
    for column, (name, values) in enumerate(SIZES.items()):
        points = []
        for value in values:
            shape = Shape(**{**BASE.__dict__, name: value})
            flops = flops_per_token(built(shape, "decoder"), shape.length) * shape.tokens
            points.append((*alone(training, shape), flops))
            seconds, memory, _ = points[-1]
            yield f"| {name} {value:,} | {seconds:.3f} | {flops / 1e9:.1f} | {memory:,.0f} MB |"
        seconds, memory, flops = zip(*points, strict=True)
        rate = flops[-1] / seconds[-1]
        upper, lower = places[0][column], places[1][column]
        upper.loglog(values, seconds, "o-", label="measured")
        upper.loglog(values, [of / rate for of in flops], "--", color="0.5", label="by FLOPs, at the last one's rate")
        lower.loglog(values, memory, "o-", label="measured")
        lower.loglog(values, [memory[-1] * value / values[-1] for value in values], ":", color="0.5", label="linear")
        lower.set_xticks(values, [f"{value:,}" for value in values])
        lower.set_xlabel({"vocab": "vocabulary"}.get(name, name))
        for place in (upper, lower):
            place.xaxis.set_minor_formatter(NullFormatter())
            place.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            place.yaxis.set_minor_formatter(NullFormatter())
            place.grid(alpha=0.3, which="both")
    places[0][0].set_ylabel("seconds a step")
    places[1][0].set_ylabel("memory of a step, MB")
    lines = [*places[0][0].get_lines(), places[1][0].get_lines()[1]]
    figure.legend(lines, [str(line.get_label()) for line in lines], loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(Path(__file__).parents[1] / "docs" / "growth.png", dpi=110)


PARTS = {"loss": losses, "attention": attentions, "recompute": recomputed, "sizes": sizes}


def main(names: list[str]) -> None:
    for name in names or PARTS:
        print(f"\n{name}\n", flush=True)
        for line in PARTS[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
