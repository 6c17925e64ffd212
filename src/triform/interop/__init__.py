"""Checkpoints of Hugging Face: from their config.json and tensors to triform's parts and parameters, and back."""

from triform.interop.architecture import Architecture
from triform.interop.bart import Bart
from triform.interop.bert import Bert, Roberta
from triform.interop.distilbert import DistilBert
from triform.interop.gemma import Gemma, Gemma2, Gemma3
from triform.interop.gpt2 import GPT2
from triform.interop.llama import Llama, Mistral, Qwen2, Qwen3
from triform.interop.marian import Marian
from triform.interop.modernbert import ModernBert
from triform.interop.t5 import T5
from triform.interop.vit import ViT

ARCHITECTURES: tuple[Architecture, ...] = (
    Llama(),
    Mistral(),
    Qwen2(),
    Qwen3(),
    Gemma(),
    Gemma2(),
    Gemma3(),
    GPT2(),
    T5(),
    Bart(),
    Marian(),
    Bert(),
    Roberta(),
    DistilBert(),
    ModernBert(),
    ViT(),
)
"""Where a model fits several, the first is what it is written as."""
