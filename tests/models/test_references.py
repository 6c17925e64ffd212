"""The same weights give the same outputs as implementations that others trust."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.composed import build, ids

PADDING = torch.arange(7) < torch.tensor([[7], [4]])


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def give(layer: nn.Module, weight: Tensor, bias: Tensor | None = None) -> None:
    layer.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})


def give_torch_attention(ours: Any, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for projection, weight, bias in zip(projections, weights, biases, strict=True):
        give(projection, weight, bias)
    give(ours.out_proj, theirs.out_proj.weight, theirs.out_proj.bias)


@pytest.mark.parametrize("placement", ["post", "pre"])
@torch.no_grad()
def test_vaswani_equals_torch_transformer(placement: str) -> None:
    model = build(
        "encoder_decoder", f"model/placement={placement}", "model.attention.bias=true", "model.decoder.n_layers=3"
    )
    sizes = {"d_model": 24, "nhead": 4, "dim_feedforward": 40, "dropout": 0.0, "batch_first": True}
    layer = nn.TransformerEncoderLayer(**sizes, norm_first=placement == "pre")
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(24), enable_nested_tensor=False)
    theirs = nn.Transformer(**sizes, norm_first=placement == "pre", custom_encoder=encoder, num_decoder_layers=3).eval()
    if placement == "post":  # torch ends both stacks with a norm in either case, the paper does not
        theirs.encoder.norm = theirs.decoder.norm = None
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    for ours_stack, theirs_stack in ((model.encoder, theirs.encoder), (model.decoder, theirs.decoder)):
        for ours, layer in zip(ours_stack.layers, theirs_stack.layers, strict=True):
            norms = [layer.norm1, layer.norm2, getattr(layer, "norm3", None)]
            give_torch_attention(ours.attention, layer.self_attn)
            residuals = [ours.attn_residual, ours.ff_residual]
            if ours_stack is model.decoder:
                give_torch_attention(ours.cross_attention, layer.multihead_attn)
                residuals.insert(1, ours.cross_residual)
            for residual, norm in zip(residuals, norms, strict=False):
                give(residual.norm, norm.weight, norm.bias)
            give(ours.feed_forward.up_proj, layer.linear1.weight, layer.linear1.bias)
            give(ours.feed_forward.down_proj, layer.linear2.weight, layer.linear2.bias)
        if placement == "pre":
            give(ours_stack.final_norm, theirs_stack.norm.weight, theirs_stack.norm.bias)

    source, target = ids(2, 7), ids(2, 5, seed=1)

    def embed(tokens: Tensor) -> Tensor:
        table = model.encoder.position.table(torch.arange(tokens.shape[1])[None])
        return model.embedding.table(tokens) * 24**0.5 + table

    expected = theirs(
        embed(source),
        embed(target),
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        src_key_padding_mask=~PADDING,
        memory_key_padding_mask=~PADDING,
        tgt_is_causal=True,
    )
    close(model(source, target, PADDING).hidden, expected)
    close(model(source, target, PADDING).logits, expected @ model.embedding.table.weight.T)


@pytest.mark.parametrize(("n_kv_heads", "window"), [(4, None), (2, None), (1, 3)])
@torch.no_grad()
def test_decoder_equals_mistral(n_kv_heads: int, window: int | None) -> None:
    """With n_kv_heads = n_heads and no window this is LLaMA."""
    from transformers import MistralConfig, MistralForCausalLM

    theirs = MistralForCausalLM(
        MistralConfig(
            vocab_size=37,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=n_kv_heads,
            sliding_window=window,
            rms_norm_eps=1e-6,
            attn_implementation="eager",
            tie_word_embeddings=False,
        )
    ).eval()
    for name, parameter in theirs.named_parameters():
        nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    theta = theirs.config.rope_parameters["rope_theta"]
    ours = build(
        "decoder",
        "model/attention=sliding_window",
        f"model.attention.window={window or 'null'}",
        f"model.n_kv_heads={n_kv_heads}",
        f"model.position.theta={theta}",
        "model.head.tied=false",
    )
    names = {
        "model.embed_tokens": "embedding.table",
        "model.layers": "stack.layers",
        "model.norm": "stack.final_norm",
        "self_attn.o_proj": "attention.out_proj",
        "self_attn": "attention",
        "mlp": "feed_forward",
        "input_layernorm": "attn_residual.norm",
        "post_attention_layernorm": "ff_residual.norm",
        "lm_head": "head.projection",
    }
    ours.load_state_dict({_renamed(key, names): value for key, value in theirs.state_dict().items()})
    tokens = ids(2, 7)
    close(ours(tokens).logits, theirs(tokens).logits)
    left = PADDING.flip(1)
    positions = (left.cumsum(1) - 1).clamp(min=0)
    expected = theirs(tokens, attention_mask=left.long(), position_ids=positions).logits
    close(ours(tokens, left).logits[left], expected[left])


@torch.no_grad()
def test_decoder_equals_gpt2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=37, n_positions=16, n_embd=24, n_layer=2, n_head=4)).eval()
    for name, parameter in theirs.named_parameters():
        nn.init.normal_(parameter, mean=float("ln_" in name), std=0.3)
    ours = build(
        "decoder",
        "model/position=learned",
        "model/norm=layer",
        "model/feed_forward=gelu",
        "model.feed_forward.activation.approximate=tanh",
        "model.attention.bias=true",
        "model.d_ff=96",
    )
    body = theirs.transformer
    give(ours.embedding.table, body.wte.weight)
    give(ours.stack.position.table, body.wpe.weight)
    give(ours.stack.final_norm, body.ln_f.weight, body.ln_f.bias)
    for layer, block in zip(ours.stack.layers, body.h, strict=True):
        weights, biases = block.attn.c_attn.weight.T.chunk(3), block.attn.c_attn.bias.chunk(3)
        projections = (layer.attention.q_proj, layer.attention.k_proj, layer.attention.v_proj)
        for projection, weight, bias in zip(projections, weights, biases, strict=True):
            give(projection, weight, bias)
        give(layer.attention.out_proj, block.attn.c_proj.weight.T, block.attn.c_proj.bias)
        give(layer.feed_forward.up_proj, block.mlp.c_fc.weight.T, block.mlp.c_fc.bias)
        give(layer.feed_forward.down_proj, block.mlp.c_proj.weight.T, block.mlp.c_proj.bias)
        give(layer.attn_residual.norm, block.ln_1.weight, block.ln_1.bias)
        give(layer.ff_residual.norm, block.ln_2.weight, block.ln_2.bias)
    tokens = ids(2, 7)
    close(ours(tokens).logits, theirs(tokens).logits)


def _renamed(key: str, names: dict[str, str]) -> str:
    for theirs, ours in names.items():
        key = key.replace(theirs, ours)
    return key
