"""Activations that are computed again in the backward pass instead of kept, to save memory."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

MODES = ("none", "block", "selective")

_state = threading.local()  # a backward pass on a GPU has a thread of its own

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}
"""What `selective` keeps: products of matrices and attention, most of the time and little of the memory."""


def recompute(blocks: list[nn.Module], mode: str) -> None:
    """Have blocks keep less for the backward pass (Chen et al. 2016, https://arxiv.org/abs/1604.06174).

    Numbers do not change; dropout draws the same noise again.

    Args:
        mode: `none`; `block`, which keeps a block's input alone and computes the rest twice, a third more work; or
            `selective`, which keeps the outputs of matrix products and attention and computes again what is cheap, such
            as norms, activations and dropout.

    Raises:
        ValueError: an unknown `mode`, or one that changes nothing, as there are no blocks.
    """
    if mode not in MODES:
        raise ValueError(
            f"recompute: activation_checkpointing={mode!r} is unknown; set trainer.activation_checkpointing to "
            f"{', '.join(MODES[:-1])} or {MODES[-1]}"
        )
    if mode == "none":
        return
    if not blocks:
        raise ValueError(
            f"recompute: activation_checkpointing={mode} is about a Transformer's blocks, and this model has none; set "
            "trainer.activation_checkpointing=none"
        )
    for block in blocks:
        block.forward = partial(_lean, block.forward, mode == "selective")


def recomputing() -> bool:
    """Whether this is a forward pass within the backward pass, which has happened before."""
    # Under torch.compile what is computed again is no second call, and an attribute of a thread would break the graph.
    return not torch.compiler.is_compiling() and getattr(_state, "recomputing", False)


def _lean(forward: Any, selective: bool, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if torch.compiler.is_compiling() and not selective:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    contexts = _selective if selective else _whole
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def _whole() -> Contexts:
    return nullcontext(), _again(nullcontext())


def _selective() -> Contexts:
    first, second = create_selective_checkpoint_contexts(_policy)
    return first, _again(second)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def _again(inner: AbstractContextManager[Any]) -> Iterator[None]:
    _state.recomputing = True
    try:
        with inner:
            yield
    finally:
        _state.recomputing = False
