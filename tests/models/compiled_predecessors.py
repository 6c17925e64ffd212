"""What torch.compile makes of tiny predecessors, in a process of its own: Dynamo cannot trace the checks of shapes.

    JAXTYPING_DISABLE=1 python -m tests.models.compiled_predecessors

prints one line of JSON: of each its graphs after few and after many lengths, and the largest difference to what it
computes uncompiled.
"""

import json

import torch
from torch._dynamo.utils import counters

from tests.models.composed import PREDECESSORS, build, ids

LENGTHS = (5, 6, 7, 9, 10, 12, 13, 14)


def examine(name: str) -> dict[str, float]:
    plain, compiled = build(name).train(), build(name).train()
    torch.compiler.reset()
    counters.clear()
    compiled.compile(backend="eager", dynamic=True)
    graphs, difference = [], 0.0
    for length in LENGTHS:
        source, target = ids(2, length), ids(2, length + 1, seed=1)
        hidden, expected = (model(source, target).hidden for model in (compiled, plain))
        hidden.sum().backward()
        difference = max(difference, float((hidden - expected).detach().abs().max()))
        graphs.append(counters["stats"]["unique_graphs"])
    return {"first": graphs[0], "last": graphs[-1], "difference": difference}


if __name__ == "__main__":
    print(json.dumps({name: examine(name) for name in PREDECESSORS}))
