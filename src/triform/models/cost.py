"""What a model costs: parameters and FLOPs. Counts from shapes alone, so a model on the meta device will do."""

from torch import nn

from triform.layers.attention import Attention
from triform.layers.feed_forward.mixture import MixtureOfExperts
from triform.layers.masks import AttentionMask
from triform.layers.stack import Stack
from triform.models.decoder import Decoder
from triform.models.encoder import Encoder
from triform.models.two_stacks import TwoStacks


def count_parameters(model: nn.Module) -> int:
    """Weights, tied ones counted once; all experts of a mixture and what is frozen included."""
    return sum(parameter.numel() for parameter in model.parameters())


def flops_per_token(model: Encoder | Decoder | TwoStacks, seq_len: int) -> float:
    """FLOPs of training (forward and backward) for each token read, in rows of `seq_len` without padding.

    Three times those of the forward pass, which are 2 for each weight of a projection and token it is applied
    to (of a mixture: by the experts that a token takes), and 4 * n_heads * head_dim for each pair of a query and
    a key that it may attend to. The output projection counts, tied or not, and that of patches; lookups, norms,
    softmax and what is recomputed do not.

    Kaplan et al. 2020, section 2.1, and Chowdhery et al. 2022, appendix B, except that only pairs under the
    mask count: about half of all in causal attention.

    An encoder-decoder reads a source and a target of `seq_len` each, and the figure is their mean: encoder
    and the keys and values of cross-attention work on the source, the rest on the target. What is no `Stack` counts
    itself by the same rule: matrices times tokens, and products of pairs.
    """
    stacks = [model.encoder, model.decoder] if isinstance(model, TwoStacks) else [model.stack]
    forward = sum(_stack_flops(s, seq_len) if isinstance(s, Stack) else int(s.flops(seq_len)) for s in stacks)
    forward += model.embedding.flops(seq_len) + model.head.flops(seq_len)
    return 3 * forward / (len(stacks) * seq_len)


def _stack_flops(stack: Stack, seq_len: int) -> int:
    """Of the forward pass of a row (and of a memory of the same length)."""
    total = 0
    for name, module in stack.named_modules():
        if isinstance(module, MixtureOfExperts):
            unused = [w for e in list(module.experts)[module.top_k :] for w in e.modules() if isinstance(w, nn.Linear)]
            total -= sum(2 * w.weight.numel() * seq_len for w in unused)
        if isinstance(module, nn.Linear):
            total += 2 * module.weight.numel() * seq_len
        if isinstance(module, Attention):
            crosses = name.endswith("cross_attention")
            pairs = seq_len**2 if crosses else _visible_pairs(stack.causal, module.window, seq_len)
            total += 4 * module.n_heads * module.head_dim * pairs
    return total


def _visible_pairs(causal: bool, window: int | None, seq_len: int) -> int:
    reach = AttentionMask(causal=causal, window=window).reach
    far = seq_len - 1 if reach is None else min(reach, seq_len - 1)
    one_side = far * (far + 1) // 2 + (seq_len - 1 - far) * far
    return seq_len + one_side if causal else seq_len + 2 * one_side
