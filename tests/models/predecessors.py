"""Tiny predecessors of the Transformer, composed from conf/ as a run composes them."""

from functools import cache
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from tests.models.composed import CONF, VOCAB_SIZE

# Sizes that all differ; several layers, so that residuals and dilations are there.
TINY = {
    "lstm": {"d_model": 24, "n_layers": 1, "d_ff": 20, "max_seq_len": 16, "dropout": 0.0},
    "gnmt": {"d_model": 24, "n_layers": 4, "d_ff": 20, "max_seq_len": 16, "dropout": 0.0},
    "bytenet": {"d_model": 24, "n_layers": 5, "d_ff": 10, "max_seq_len": 16, "dropout": 0.0},
    "convs2s": {"d_model": 24, "n_layers": 3, "d_ff": 20, "max_seq_len": 16, "dropout": 0.0},
}
NAMES = tuple(TINY)


@cache
def settings(name: str, *overrides: str) -> dict[str, Any]:
    """The `model` node; not to be changed."""
    sizes = [f"model.{key}={value}" for key, value in TINY[name].items()]
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose(overrides=[f"+model={name}", *sizes, *overrides])
    node = OmegaConf.to_container(config.model, resolve=True)
    assert isinstance(node, dict)
    return {str(key): value for key, value in node.items()}


def build(name: str, *overrides: str, seed: int = 0, **arguments: Any) -> Any:
    """On the meta device first, as a run does."""
    factory = instantiate(settings(name, *overrides), _convert_="all")
    with torch.device("meta"):
        model = factory(**{"vocab_size": VOCAB_SIZE} | arguments)
    model = model.to_empty(device="cpu")
    for value in (*model.parameters(), *model.buffers()):
        value.data.fill_(float("nan"))
    model.initialise(seed)
    return model.eval()
