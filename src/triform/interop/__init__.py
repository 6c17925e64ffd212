"""Checkpoints of Hugging Face: from their config.json and tensors to triform's parts and parameters, and back."""

from triform.interop.architecture import Architecture
from triform.interop.gemma import Gemma
from triform.interop.gpt2 import GPT2
from triform.interop.llama import Llama, Mistral, Qwen2, Qwen3

ARCHITECTURES: tuple[Architecture, ...] = (Llama(), Mistral(), Qwen2(), Qwen3(), Gemma(), GPT2())
"""Where a model fits several, the first is what it is written as."""
