import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch
from torch._dynamo.utils import counters
from tests.models.composed import build, ids, read

for family in ("encoder", "decoder", "encoder_decoder"):
    model = build(family, "model/attention=sliding_window", "model.attention.window=3")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    counters.clear()
    for length in range(4, 12):
        tokens, padding = ids(2, length), torch.arange(length) < torch.tensor([[length], [3]])
        arguments = {"padding_mask": padding}
        if family == "encoder_decoder":
            arguments["decoder_padding_mask"] = padding
        rows = (tokens, tokens) if family == "encoder_decoder" else (tokens,)
        torch.testing.assert_close(compiled(*rows, **arguments).hidden, model(*rows, **arguments).hidden)
    assert counters["stats"]["unique_graphs"] <= 2, counters["stats"]
"""


@pytest.mark.slow
def test_one_graph_for_all_lengths() -> None:
    """In a process of its own: Dynamo cannot trace the checks of shapes."""
    environment = os.environ | {"JAXTYPING_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
