from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from tests.interop.parity import VOCAB_SIZE, changed_config, check_export, check_single_stack, close, ids, randomised
from tests.models.composed import build
from triform.run.pretrained import from_pretrained, save_pretrained

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
    return randomised(LlamaForCausalLM(LlamaConfig(**{**SIZES, **changed}, attn_implementation="eager")))


@pytest.mark.parametrize(
    "changed",
    [
        {"rms_norm_eps": 1e-3},
        {"tie_word_embeddings": True},
        {"head_dim": 10},
        {"hidden_act": "gelu"},
        {"pretraining_tp": 2, "num_key_value_heads": 4},
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


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 4.0},
        {"rope_type": "linear", "type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ],
)  # fmt: skip
@torch.no_grad()
def test_scaling_as_older_files_have_it(scaling: dict[str, Any], tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    changed_config(tmp_path, rope_parameters=None, rope_theta=500.0, rope_scaling=scaling)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert theirs.config.rope_parameters["rope_theta"] == 500.0
    assert theirs.config.rope_parameters["factor"] == scaling["factor"]
    close(from_pretrained(tmp_path)[0](ids(2, 11)).logits, theirs.eval()(ids(2, 11)).logits)


@torch.no_grad()
def test_weights_in_several_files(tmp_path: Path) -> None:
    theirs = llama()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    close(from_pretrained(tmp_path)[0](ids(2, 11)).logits, theirs(ids(2, 11)).logits)


@torch.no_grad()
def test_tables_of_rotary_frequencies_are_no_weights(tmp_path: Path) -> None:
    """Older versions saved one for each layer."""
    theirs = llama()
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
    save_file(tensors, tmp_path / "model.safetensors")
    close(from_pretrained(tmp_path)[0](ids(2, 11)).logits, theirs(ids(2, 11)).logits)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_act": "relu"}, r"hidden_act='relu' is not supported; supported: 'silu', 'swish', 'gelu'"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            r"rope_type='dynamic' is not supported; supported: default, linear, llama3, yarn",
        ),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "longrope", "factor": 2.0}},
            r"rope_type='longrope' is not supported",
        ),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, r"rope_type='linear' has no factor"),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "truncate": False}},
            r"rope_type='linear' with truncate=False is not supported; supported: factor",
        ),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0.5 is not supported; supported: 1.0"),
        ({"num_attention_heads": "four"}, r"json: num_attention_heads='four' is no whole number from 1 on"),
        ({"hidden_size": 0}, r"hidden_size=0 is no whole number from 1 on; fetch the file again"),
        ({"rms_norm_eps": "small"}, r"rms_norm_eps='small' is no number from 0 on"),
        ({"tie_word_embeddings": "no"}, r"tie_word_embeddings='no' is neither true nor false"),
        ({"num_key_value_heads": 3}, r"config.json: Attention: n_heads=4 is not a multiple of n_kv_heads=3"),
        ({"num_key_value_heads": 0}, r"num_key_value_heads=0 is no whole number from 1 on; fetch the file again"),
        ({"head_dim": 0}, r"head_dim=0 is no whole number from 1 on"),
        ({"vocab_size": 10**30}, r"vocab_size=10+ is more than any model has; fetch the file again"),
        ({"rope_parameters": {"rope_theta": "1e4"}}, r"rope_theta='1e4' is no number from 0 on; fetch the file again"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            r"rope_type='default' with partial_rotary_factor=0.5 is not supported; supported: no other key than rope",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": "2"}},
            r"rope_type='linear': factor='2' is no number from 0 on; fetch the file again",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0.5}},
            r"config.json: LinearScaling: factor=0.5 is less than 1",
        ),
    ],
)
def test_what_no_part_computes_is_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    changed_config(tmp_path, **changed)
    with pytest.raises(ValueError, match=message) as refused:
        from_pretrained(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "overrides", [(), ("model/attention=grouped_query",), ("model.head_dim=10", "model/position=rotary_llama3")]
)
def test_a_decoder_that_was_not_one_of_theirs_is_written_as_llama(overrides: tuple[str, ...], tmp_path: Path) -> None:
    """Its config leaves the number of heads and their width to others."""
    ours = randomised(build("decoder", *overrides))
    config = check_export(ours, LlamaForCausalLM, tmp_path / "ours", ids(2, 11))
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_half_precision_stays(tmp_path: Path) -> None:
    llama().to(torch.bfloat16).save_pretrained(tmp_path / "theirs")
    ours, _ = from_pretrained(tmp_path / "theirs", dtype=None)
    save_pretrained(ours, tmp_path / "ours")
    theirs, first = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert theirs.keys() == first.keys()
    assert all(torch.equal(theirs[name], first[name]) for name in theirs)
    assert LlamaForCausalLM.from_pretrained(tmp_path / "ours").dtype == torch.bfloat16


@torch.no_grad()
def test_the_bare_model_is_read_under_its_tied_head(tmp_path: Path) -> None:
    theirs = llama(tie_word_embeddings=True)
    bare = LlamaModel(theirs.config)
    bare.load_state_dict(theirs.model.state_dict())
    bare.save_pretrained(tmp_path)
    close(from_pretrained(tmp_path)[0](ids(2, 11)).logits, theirs(ids(2, 11)).logits)
    changed_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"has no lm_head.weight, which LLaMA has; .* a file of LlamaForCausalLM"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "overrides",
    [
        ("model/position=alibi",),
        ("model/position=rotary_interleaved",),
        ("model/attention=softcap",),
        ("model/attention=sinks",),
        ("model/attention=alternate", "model.attention.first=1"),
        ("model/norm=rms_cast_after",),
        ("model/placement=sandwich",),
        ("model/feed_forward=mixture",),
        ("model.scale_embedding=true",),
        ("model.head.scaled=true",),
        ("model/init=mup",),
    ],
    ids=" ".join,
)
@torch.no_grad()
def test_what_no_published_model_computes_is_written_as_our_own(overrides: tuple[str, ...], tmp_path: Path) -> None:
    ours = randomised(build("decoder", *overrides))
    assert save_pretrained(ours, tmp_path / "ours") == "triform"
    again, _ = from_pretrained(tmp_path / "ours")
    assert torch.equal(again(ids(2, 11)).logits, ours(ids(2, 11)).logits)
