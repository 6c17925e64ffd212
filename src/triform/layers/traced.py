"""Who goes over the operations of a forward pass."""

import torch


def is_traced() -> bool:
    """Whether torch.compile or torch.func does, which cannot follow what is done in fewer passes on a CPU."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
