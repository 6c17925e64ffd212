"""Every part compiles to few graphs, without a break, and computes what it computes uncompiled."""

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tests.models.compiled import CASES
from tests.models.composed import FAMILIES

QUICK_TWO_STACKS = "encoder_decoder:dropout"
TWO_STACKS = [f"encoder_decoder:{case}" for case in CASES if f"encoder_decoder:{case}" != QUICK_TWO_STACKS]
ONE_STACK = [f"{FAMILIES[i % 2]}:{case}" for i, case in enumerate(CASES)]
GRAPHS = 3
"""With padding, without, and the first step of a mixture that counts from step to step."""
THROUGH_AUTOGRAD = [
    "decoder:normed and scaled",
    "encoder:position=alibi",
    "decoder:feed_forward=mixture_shared",
    "encoder_decoder:attention=softcap",
]
THROUGH_INDUCTOR = [
    "encoder:norm=layer",
    "decoder:norm=rms",
    "decoder:idle experts",
    "encoder_decoder:attention=sliding_window",
]
slow = pytest.mark.slow
QUICK = (
    "attention=alternate",
    "attention=sinks",
    "attention=softcap",
    "feed_forward=swiglu",
    "feed_forward=mixture_shared",
    "init=mup",
    "layer_drop=constant",
    "norm=rms",
    "placement=deepnorm",
    "placement=parallel",
    "position=alibi",
    "position=learned",
    "position=rotary",
    "position=t5",
    "two rotary bases",
    "idle experts",
    "dropout",
)
"""One of each kind; the others, whose code differs from one of these in a formula, are slow."""
QUICK_STACK = [model for model in ONE_STACK if model.partition(":")[2] in QUICK]
OTHER_STACK = [model for model in ONE_STACK if model not in QUICK_STACK]


@cache
def examined(backend: str, paddings: str, *models: str) -> dict[str, dict[str, Any]]:
    """All in one process, as starting one takes as long as several models."""
    command = [sys.executable, "-m", "tests.models.compiled", backend, paddings, *models]
    done = subprocess.run(
        command, env=os.environ | {"JAXTYPING_DISABLE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {found.pop("model"): found for found in map(json.loads, done.stdout.splitlines())}


def check(found: dict[str, Any], graphs: int = GRAPHS) -> None:
    assert found["breaks"] == []
    assert found["skipped"] == 0
    assert 1 <= found["graphs"] <= graphs, "for all lengths"
    assert found["worst"] < 1e-5


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("model", QUICK_STACK)
def test_one_stack(model: str) -> None:
    check(examined("eager", "padded", *QUICK_STACK)[model], graphs=GRAPHS - 1)


@slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("model", OTHER_STACK)
def test_one_stack_of_other_parts(model: str) -> None:
    check(examined("eager", "padded", *OTHER_STACK)[model], graphs=GRAPHS - 1)


@pytest.mark.timeout(1200)
def test_two_stacks_that_read_one_another() -> None:
    check(examined("eager", "both", QUICK_TWO_STACKS)[QUICK_TWO_STACKS])


@slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("model", TWO_STACKS)
def test_two_stacks(model: str) -> None:
    check(examined("eager", "both", *TWO_STACKS)[model])


@slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("model", THROUGH_AUTOGRAD)
def test_through_autograd(model: str) -> None:
    check(examined("aot_eager", "both", *THROUGH_AUTOGRAD)[model])


@slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("model", THROUGH_INDUCTOR)
def test_through_inductor(model: str) -> None:
    check(examined("inductor", "both", *THROUGH_INDUCTOR)[model])
