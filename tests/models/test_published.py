"""Parts together, as published models combine them: the same weights give the same logits as in Hugging Face."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.composed import build, ids

SIZES = {"vocab_size": 37, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
GATED = {
    "model.embed_tokens": "embedding.table",
    "model.layers": "stack.layers",
    "model.norm": "stack.final_norm",
    "self_attn.o_proj": "attention.out_proj",
    "self_attn": "attention",
    "mlp": "feed_forward",
}
PRE = {"input_layernorm": "attn_residual.norm", "post_attention_layernorm": "ff_residual.norm"}
SANDWICH = {
    "input_layernorm": "attn_residual.norm",
    "post_attention_layernorm": "attn_residual.out_norm",
    "pre_feedforward_layernorm": "ff_residual.norm",
    "post_feedforward_layernorm": "ff_residual.out_norm",
}


def randomised(model: nn.Module, gain: float = 0.0) -> nn.Module:
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=gain if "norm" in name.lower() and parameter.ndim == 1 else 0.0, std=0.3)
    return model.eval()


def take(ours: nn.Module, theirs: nn.Module, names: dict[str, str], *left_out: str) -> None:
    kept = {key: value for key, value in theirs.state_dict().items() if not key.startswith(left_out)}
    ours.load_state_dict(_renamed(kept, names))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * max(1.0, float(theirs.abs().max())))


def gemma(*more: str) -> Any:
    return build(
        "decoder",
        "model/attention=alternate",
        "model.attention.local.window=3",
        "model/norm=rms_unit_offset",
        "model/placement=sandwich",
        "model/feed_forward=geglu",
        "model.scale_embedding=true",
        "model.n_layers=4",
        "model.head_dim=8",
        "model.n_kv_heads=2",
        *more,
    )


@torch.no_grad()
def test_gemma_2() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        **SIZES, **HEADS, sliding_window=3, query_pre_attn_scalar=10, attn_implementation="eager",
        attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
    )  # fmt: skip
    theirs = randomised(Gemma2ForCausalLM(config))
    capped = [
        f"model.attention.{kind}.{key}" for kind in ("local", "full") for key in ("softcap=2.0", f"scale={10**-0.5}")
    ]
    ours = gemma("model.attention.every=2", "model.attention.first=1", "model.head.softcap=3.0", *capped)
    take(ours, theirs, GATED | SANDWICH, "lm_head")
    close(ours(ids(2, 7)).logits, theirs(ids(2, 7)).logits)


@torch.no_grad()
def test_gemma_3() -> None:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **SIZES, **HEADS, sliding_window=3, query_pre_attn_scalar=8, attn_implementation="eager",
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
        },
    )  # fmt: skip
    theirs = randomised(Gemma3ForCausalLM(config))
    normed = [f"+model/norm@model.attention.{kind}.qk_norm=rms_unit_offset" for kind in ("local", "full")]
    pattern = ("model.attention.every=3", "model.attention.first=2", "model.attention.local_theta=100.0")
    ours = gemma(*normed, *pattern, "model/position=rotary_linear")
    take(ours, theirs, GATED | SANDWICH, "lm_head")
    close(ours(ids(2, 7)).logits, theirs(ids(2, 7)).logits)


@torch.no_grad()
def test_qwen_3() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**SIZES, **HEADS, tie_word_embeddings=False, attn_implementation="eager")
    theirs = randomised(Qwen3ForCausalLM(config), gain=1.0)
    sizes = ("model.n_layers=4", "model.head_dim=8", "model.n_kv_heads=2", "model.head.tied=false")
    theta = config.rope_parameters["rope_theta"]
    ours = build("decoder", "model/attention=qk_norm", f"model.position.theta={theta}", *sizes)
    take(ours, theirs, GATED | PRE | {"lm_head": "head.projection"})
    close(ours(ids(2, 7)).logits, theirs(ids(2, 7)).logits)


@torch.no_grad()
def test_gpt_j() -> None:
    from transformers import GPTJConfig, GPTJForCausalLM

    config = GPTJConfig(vocab_size=37, n_embd=24, n_layer=2, n_head=3, rotary_dim=4, n_inner=40, n_positions=16)
    theirs = randomised(GPTJForCausalLM(config), gain=1.0)
    nn.init.zeros_(theirs.lm_head.bias)
    ours = build(
        "decoder",
        "model/position=rotary_interleaved",
        "model.position.fraction=0.5",
        "model/placement=parallel",
        "model/norm=layer",
        "model/feed_forward=gelu_tanh",
        "model.n_heads=3",
        "model.head.tied=false",
    )
    names = {
        "transformer.wte": "embedding.table",
        "transformer.ln_f": "stack.final_norm",
        "transformer.h": "stack.layers",
        "ln_1": "attn_residual.norm",
        "attn.": "attention.",
        "mlp.fc_in": "feed_forward.up_proj",
        "mlp.fc_out": "feed_forward.down_proj",
        "lm_head": "head.projection",
    }
    take(ours, theirs, names, "lm_head.bias")
    close(ours(ids(2, 7)).logits, theirs(ids(2, 7)).logits)


@pytest.mark.parametrize("gated", [False, True])
@torch.no_grad()
def test_t5(gated: bool) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=37, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=20,
        feed_forward_proj="gated-gelu" if gated else "relu", dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    theirs = randomised(T5ForConditionalGeneration(config), gain=1.0)
    ours = build(
        "encoder_decoder",
        "model/position=t5",
        "model.position.n_buckets=8",
        "model.position.max_distance=20",
        "model/norm=rms",
        "model/placement=pre",
        "model/feed_forward=" + ("geglu" if gated else "relu"),
        "model.feed_forward.bias=false",
        "model.attention.scale=1.0",
        "model.head_dim=8",
        "model.scale_embedding=false",
        "model.head.scaled=true",
    )
    names = {
        "shared": "embedding.table",
        "block.0.layer.0.SelfAttention.relative_attention_bias": "position.table",
        "final_layer_norm": "final_norm",
        "block": "layers",
        "layer.0.SelfAttention.": "attention.",
        "layer.0.layer_norm": "attn_residual.norm",
        "layer.1.EncDecAttention.": "cross_attention.",
        "layer.1.layer_norm": "cross_residual.norm",
        "layer.2.layer_norm": "ff_residual.norm",
        ".wi_0": ".gate_proj",
        ".wi_1": ".up_proj",
        ".wi": ".up_proj",
        ".wo": ".down_proj",
        "attention.q.": "attention.q_proj.",
        "attention.k.": "attention.k_proj.",
        "attention.v.": "attention.v_proj.",
        "attention.o.": "attention.out_proj.",
        "layer.1.DenseReluDense": "feed_forward",
        "layer.2.DenseReluDense": "feed_forward",
    }
    encoder = {"encoder." + key: value for key, value in _renamed(theirs.encoder.state_dict(), names).items()}
    encoder = {key.replace("cross_residual", "ff_residual"): value for key, value in encoder.items()}
    decoder = {"decoder." + key: value for key, value in _renamed(theirs.decoder.state_dict(), names).items()}
    both = {key: value for key, value in (encoder | decoder).items() if "embed_tokens" not in key}
    ours.load_state_dict(both | {"embedding.table.weight": theirs.shared.weight})
    source, target, padding = ids(2, 7), ids(2, 5, seed=1), torch.arange(7) < torch.tensor([[7], [4]])
    expected = theirs(input_ids=source, attention_mask=padding.long(), decoder_input_ids=target).logits
    close(ours(source, target, padding).logits, expected)


@torch.no_grad()
def test_bert() -> None:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        **SIZES, num_attention_heads=4, max_position_embeddings=16, type_vocab_size=2, attn_implementation="eager"
    )
    theirs = randomised(BertForMaskedLM(config), gain=1.0)
    ours = build(
        "encoder",
        "model/placement=post",
        "model.norm.eps=1e-12",
        "model/norm@model.embedding_norm=layer",
        "model.embedding_norm.eps=1e-12",
        "model.n_token_types=2",
        "model.attention.bias=true",
        "model.n_layers=4",
    )
    names = {
        "embeddings.word_embeddings": "embedding.table",
        "embeddings.token_type_embeddings": "embedding.types",
        "embeddings.position_embeddings": "stack.position.table",
        "embeddings.LayerNorm": "stack.embedding_norm",
        "encoder.layer": "stack.layers",
        "attention.self.query": "attention.q_proj",
        "attention.self.key": "attention.k_proj",
        "attention.self.value": "attention.v_proj",
        "attention.output.dense": "attention.out_proj",
        "attention.output.LayerNorm": "attn_residual.norm",
        "intermediate.dense": "feed_forward.up_proj",
        "output.dense": "feed_forward.down_proj",
        "output.LayerNorm": "ff_residual.norm",
    }
    ours.load_state_dict(_renamed(theirs.bert.state_dict(), names) | {"head.bias": torch.zeros(37)})
    tokens, types, padding = (
        ids(2, 7),
        (torch.arange(7) > 3).long().expand(2, 7),
        torch.arange(7) < torch.tensor([[7], [4]]),
    )
    expected = theirs.bert(tokens, attention_mask=padding.long(), token_type_ids=types).last_hidden_state
    close(ours(tokens, padding, token_type_ids=types).hidden[padding], expected[padding])


def _renamed(state: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    renamed = {}
    for key, value in state.items():
        for theirs, ours in names.items():
            key = key.replace(theirs, ours)
        renamed[key] = value
    return renamed
