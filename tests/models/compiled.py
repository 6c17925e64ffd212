"""What torch.compile makes of tiny models, in a process of its own: Dynamo cannot trace the checks of shapes.

    JAXTYPING_DISABLE=1 python -m tests.models.compiled BACKEND both|padded FAMILY:CASE ...

prints one line of JSON for each; `both`: with and without padding.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

from tests.models.composed import PARTS, build, chosen, ids, read
from triform.layers import dropout, kernels
from triform.layers.feed_forward.mixture import loads
from triform.models.output import ModelOutput

LENGTHS = (5, 9, 14, 20)
ALIKE = ("init",)  # how weights begin does not show in a graph; muP's factors are numbers in it
LAYERS = {"alternate": 2, "alternate_nope": 2, "stochastic_depth": 2}
"""One layer is enough for most parts, and tracing takes as long as there are layers."""
WALKED = {
    f"{group}={name}": (*chosen(group, name), f"model.n_layers={LAYERS.get(name, 1)}")
    for group, name in PARTS
    if group not in ALIKE or name == "mup"
}
COMBINED = {
    "capped, scaled and normed": ("model/attention=softcap", "model/position=rotary_yarn"),
    "normed and scaled": ("model/attention=qk_norm", "model/position=rotary_yarn"),
    "two rotary bases": (
        "model/attention=alternate",
        "model/position=rotary",
        "model.attention.local.window=3",
        "model.attention.local_theta=100.0",
        "model.attention.every=2",
        "model.attention.first=1",
    ),
    "windowed sinks": ("model/attention=sinks", "model.attention.window=3", "model.n_kv_heads=2"),
    "idle experts": (
        "model/feed_forward=mixture",
        "model.feed_forward.n_experts=12",
        "model.feed_forward.top_k=1",
        "model.n_layers=1",
    ),
    "dropout": ("model.dropout=0.1", "model.attention.weights_dropout=0.1", "model.n_layers=1"),
}
CASES = WALKED | COMBINED


def step(
    model: Any, call: Callable[..., ModelOutput], length: int, padded: bool
) -> tuple[Tensor, dict[str, Tensor | None], dict[str, list[float]]]:
    """What a training step computes: hidden states, gradients, and what each expert had to do."""
    padding = {"padding_mask": torch.arange(length) < torch.tensor([[length], [3]])} if padded else {}
    model.zero_grad()
    torch.manual_seed(length)
    hidden = read(model, ids(2, length), call=call, **padding).hidden
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(length))
    (hidden * weights).sum().backward()  # the sum of squares of what a norm gives has no gradient
    return hidden.detach(), {name: p.grad for name, p in model.named_parameters()}, loads(model)


@contextmanager
def drawn_by_torch() -> Iterator[None]:
    """Dropout as a compiled model has it."""
    with patch.object(dropout, "dropout", F.dropout), patch.object(kernels, "dropped", F.dropout):
        yield


def examine(family: str, overrides: tuple[str, ...], backend: str, paddings: tuple[bool, ...]) -> dict[str, Any]:
    """Of a compiled model: its graphs, what broke them, and the largest difference to what it computes uncompiled."""
    model = build(family, "model.max_seq_len=24", *overrides).train()
    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    worst = 0.0
    for padded in paddings:
        for length in LENGTHS:
            hidden, gradients, experts = step(model, compiled, length, padded)
            gradients = {name: None if g is None else g.clone() for name, g in gradients.items()}
            with drawn_by_torch():
                expected, expected_gradients, expected_experts = step(model, model, length, padded)
            pairs = [(hidden, expected), *((gradients[name], g) for name, g in expected_gradients.items())]
            assert experts == expected_experts
            for ours, theirs in pairs:
                assert (ours is None) == (theirs is None)
                if ours is not None and theirs is not None:
                    largest = max(1.0, float(theirs.abs().max()))
                    worst = max(worst, float((ours - theirs).abs().max()) / largest)
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": [*counters["graph_break"], *counters["unimplemented"]],
        "skipped": counters["frames"]["total"] - counters["frames"]["ok"],
        "worst": worst,
    }


def main(backend: str, paddings: str, *models: str) -> None:
    torch.set_num_threads(1)
    torch._dynamo.config.capture_scalar_outputs = True  # as `Task` does
    torch._inductor.config.fallback_random = True  # dropout draws the same numbers
    for model in models:
        family, _, case = model.partition(":")
        found = examine(family, CASES[case], backend, (True, False) if paddings == "both" else (True,))
        print(json.dumps({"model": model, **found}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
