from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.interop.parity import VOCAB_SIZE, check_export, check_single_stack, ids, randomised
from triform.run.pretrained import from_pretrained

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def llama(**changed: Any) -> Any:
    return randomised(LlamaForCausalLM(LlamaConfig(**SIZES, **changed, attn_implementation="eager")))


@pytest.mark.parametrize(
    "changed",
    [
        {"rms_norm_eps": 1e-3},
        {"tie_word_embeddings": True},
        {"head_dim": 10},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
            }
        },
        {
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8,
            }
        },
    ],
    ids=lambda changed: "-".join(changed),
)  # fmt: skip
def test_llama_in_and_out(changed: dict[str, Any], tmp_path: Path) -> None:
    ours = check_single_stack(llama(**changed), tmp_path / "theirs")
    config = check_export(ours, LlamaForCausalLM, tmp_path / "ours", ids(2, 11))
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_a_tied_head_may_be_stored_or_not(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    ours, _ = from_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(from_pretrained(tmp_path)[0](ids(1, 5)).logits, ours(ids(1, 5)).logits)
    tensors["lm_head.weight"][3, 2] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head.weight differs from model.embed_tokens.weight.*tie_word_embeddings"):
        from_pretrained(tmp_path)
