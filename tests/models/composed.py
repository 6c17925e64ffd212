"""Tiny models, composed from conf/ as a run composes them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn

from triform.models.output import ModelOutput

CONF = Path(__file__).parents[2] / "conf"
FAMILIES = ("encoder", "decoder", "encoder_decoder")
VOCAB_SIZE = 37

# Sizes that all differ, so that a swapped axis fails.
TINY = {"d_model": 24, "n_layers": 2, "n_heads": 4, "d_ff": 40, "max_seq_len": 16, "dropout": 0.0}

# The predecessors have no heads; several layers, so that residuals and dilations are there.
PREDECESSORS = {
    "lstm": {"d_model": 24, "n_layers": 1, "d_ff": 20, "max_seq_len": 16, "dropout": 0.0},
    "gnmt": {"d_model": 24, "n_layers": 4, "d_ff": 20, "max_seq_len": 16, "dropout": 0.0},
    "bytenet": {"d_model": 24, "n_layers": 5, "d_ff": 10, "max_seq_len": 16, "dropout": 0.0},
    "convs2s": {"d_model": 24, "n_layers": 3, "d_ff": 20, "max_seq_len": 16, "dropout": 0.0},
}

# What a part needs besides, at these sizes.
NEEDS = {"rotary_partial": ("model.head_dim=8",), "sliding_window": ("model.attention.window=3",)}

FILES = [(path.parent.name, path.stem) for path in sorted((CONF / "model").glob("*/*.yaml"))]

# Those that every family takes, whatever it reads and predicts, and learns itself (`test_lora` has what adapts).
PARTS = [(group, name) for group, name in FILES if group not in ("adapter", "embedding", "head")]


def chosen(group: str, name: str) -> tuple[str, ...]:
    """The overrides that choose a part."""
    return f"model/{group}={name}", *NEEDS.get(name, ())


@cache
def settings(name: str, *overrides: str) -> dict[str, Any]:
    """The `model` node of a family or preset; overrides as typed on the command line. Not to be changed."""
    sizes = [f"model.{key}={value}" for key, value in PREDECESSORS.get(name, TINY).items()]
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose(overrides=[f"+model={name}", *sizes, *overrides])
    node = OmegaConf.to_container(config.model, resolve=True)
    assert isinstance(node, dict)
    return {str(key): value for key, value in node.items()}


def build(name: str, *overrides: str, seed: int = 0, **arguments: Any) -> Any:
    """On the meta device first, as a run does, so that a table in a buffer would be noticed."""
    factory = instantiate(settings(name, *overrides), _convert_="all")
    with torch.device("meta"):
        model = factory(**{"vocab_size": VOCAB_SIZE} | arguments)
    model = model.to_empty(device="cpu")
    for value in (*model.parameters(), *model.buffers()):
        value.data.fill_(float("nan"))
    model.initialise(seed)
    return model.eval()


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(7, VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(seed))


def read(
    model: nn.Module, input_ids: Tensor, call: Callable[..., ModelOutput] | None = None, **arguments: Tensor
) -> ModelOutput:
    """A forward pass, of `call` where the model is compiled; an encoder-decoder reads the same ids on both sides."""
    call = model if call is None else call
    if model.family == "encoder_decoder":
        if "padding_mask" in arguments:
            arguments["decoder_padding_mask"] = arguments["padding_mask"]
        return call(input_ids, input_ids, **arguments)
    return call(input_ids, **arguments)
