"""Tiny models of both forms, here and in `transformers`, with the same random weights."""

from typing import Any

import torch
from torch import nn

from tests.models.composed import build

VOCAB_SIZE, END, PAD, START = 13, 3, 1, 2
TOKENS = {"eos_token_id": END, "pad_token_id": PAD, "bos_token_id": None}
LLAMA = {
    "lm_head": "head.projection",
    "model.embed_tokens": "embedding.table",
    "model.layers": "stack.layers",
    "model.norm": "stack.final_norm",
    "self_attn.o_proj": "attention.out_proj",
    "self_attn": "attention",
    "mlp": "feed_forward",
    "input_layernorm": "attn_residual.norm",
    "post_attention_layernorm": "ff_residual.norm",
}
T5 = {
    "shared": "embedding.table",
    "block.0.layer.0.SelfAttention.relative_attention_bias": "position.table",
    "final_layer_norm": "final_norm",
    "block": "layers",
    "layer.0.SelfAttention.": "attention.",
    "layer.0.layer_norm": "attn_residual.norm",
    "layer.1.EncDecAttention.": "cross_attention.",
    "layer.2.layer_norm": "ff_residual.norm",
    ".wi": ".up_proj",
    ".wo": ".down_proj",
    "attention.q.": "attention.q_proj.",
    "attention.k.": "attention.k_proj.",
    "attention.v.": "attention.v_proj.",
    "attention.o.": "attention.out_proj.",
    "layer.1.DenseReluDense": "feed_forward",
    "layer.2.DenseReluDense": "feed_forward",
}


def decoders() -> tuple[nn.Module, Any]:
    """LLaMA, ours and theirs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=48, **TOKENS,
    )  # fmt: skip
    theirs = _randomised(LlamaForCausalLM(config), 0.25)
    sizes = ("model.n_kv_heads=2", "model.head.tied=false", "model.max_seq_len=48")
    ours = build("decoder", *sizes, vocab_size=VOCAB_SIZE)
    ours.load_state_dict(_renamed(theirs.state_dict(), LLAMA))
    return ours, theirs


def encoder_decoders() -> tuple[nn.Module, Any]:
    """T5, ours and theirs."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCAB_SIZE, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=20, feed_forward_proj="relu",
        dropout_rate=0.0, decoder_start_token_id=START, **TOKENS,
    )  # fmt: skip
    theirs = _randomised(T5ForConditionalGeneration(config), 0.6)
    ours = build(
        "encoder_decoder", "model/position=t5", "model.position.n_buckets=8", "model.position.max_distance=20",
        "model/norm=rms", "model/placement=pre", "model/feed_forward=relu", "model.feed_forward.bias=false",
        "model.attention.scale=1.0", "model.head_dim=8", "model.scale_embedding=false", "model.head.scaled=true",
        "model.max_seq_len=48", vocab_size=VOCAB_SIZE,
    )  # fmt: skip
    weights = {"embedding.table.weight": theirs.shared.weight}
    for stack in ("encoder", "decoder"):
        second = "ff_residual" if stack == "encoder" else "cross_residual"
        names = {**T5, "layer.1.layer_norm": f"{second}.norm"}
        state = _renamed(getattr(theirs, stack).state_dict(), names)
        weights |= {f"{stack}.{key}": value for key, value in state.items() if "embed_tokens" not in key}
    ours.load_state_dict(weights)
    return ours, theirs


def _randomised(model: Any, scale: float) -> Any:
    for i, parameter in enumerate(model.parameters()):
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
        parameter.data.copy_(1 + 0.3 * noise if parameter.ndim == 1 else scale * noise)
    return model.eval()


def _renamed(state: dict[str, torch.Tensor], names: dict[str, str]) -> dict[str, torch.Tensor]:
    renamed = {}
    for key, value in state.items():
        for theirs, ours in names.items():
            key = key.replace(theirs, ours)
        renamed[key] = value
    return renamed
