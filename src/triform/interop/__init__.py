"""Checkpoints of Hugging Face: from their config.json and tensors to triform's parts and parameters, and back."""

from triform.interop.architecture import Architecture
from triform.interop.llama import Llama

ARCHITECTURES: tuple[Architecture, ...] = (Llama(),)
"""Where a model fits several, the first is what it is written as."""
