import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch
from torch._dynamo.utils import counters
from tests.models.composed import build, ids
from triform.generation import generate

PADDING = (torch.arange(7) < torch.tensor([[7], [4], [1]])).flip(1)

def graphs(family, padding=None, ends=False, **how):
    torch._dynamo.reset()
    counters.clear()
    model = build(family, "model/init=xavier", "model.max_seq_len=32")
    how = {"max_new_tokens": 12, "start_id": 2} | how
    expected = generate(model, ids(3, 7), padding, **how)
    if ends:  # the second row leaves the batch in the middle
        how["eos_id"] = int(expected[1, -6])
        expected = generate(model, ids(3, 7), padding, **how)
    (model if family == "decoder" else model.decoder).compile(backend="aot_eager", fullgraph=True)
    assert torch.equal(generate(model, ids(3, 7), padding, **how), expected)
    return counters["stats"]["unique_graphs"]

model = build("decoder", "model/init=xavier")
wrapped = torch.compile(model, backend="aot_eager", fullgraph=True)
assert torch.equal(*(generate(which, ids(3, 7), max_new_tokens=4) for which in (model, wrapped)))
assert graphs("decoder") == 2
assert graphs("decoder", padding=PADDING) == 2
assert graphs("decoder", ends=True) <= 3
assert graphs("encoder_decoder") == 2
assert graphs("encoder_decoder", num_beams=3) == 2
"""


@pytest.mark.slow
def test_a_generation_takes_two_graphs() -> None:
    """One for the prompt and one for all steps; a batch that becomes smaller takes a third. In a process of its own.

    Dynamo cannot trace the checks of shapes.
    """
    environment = os.environ | {"JAXTYPING_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
