"""Any part swaps under any preset: what the preset says of the part it had does not stand in the way."""

import pytest
import torch

from tests.models.composed import CONF, NEEDS, PARTS
from triform.run.build import build
from triform.run.compose import compose

TINY = sorted(file.stem for file in (CONF / "model").glob("*_tiny.yaml"))
QUICK = (("gpt2_tiny", "attention"), ("llama_tiny", "position"))
"""The others take a minute or two."""
SWAPPED = ("attention", "feed_forward", "layer_drop", "norm", "placement", "position")
DECODERS = ("gemma_tiny", "gpt2_tiny", "llama_tiny", "mistral_tiny", "qwen2_tiny", "qwen3_tiny")


@pytest.mark.parametrize(
    ("preset", "group"),
    [
        pytest.param(preset, group, marks=[] if (preset, group) in QUICK else [pytest.mark.slow])
        for preset in DECODERS
        for group in SWAPPED
    ],
)
def test_any_part_swaps(preset: str, group: str) -> None:
    assert preset in TINY
    for _, name in (part for part in PARTS if part[0] == group):
        choice = ["experiment=none", f"model={preset}", f"model/{group}={name}", "model.vocab_size=37"]
        node = compose([*choice, *NEEDS.get(name, ())])["model"]
        with torch.device("meta"):
            build(node, (), "model")()
