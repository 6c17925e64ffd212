import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM, ModernBertModel

from tests.interop.parity import VOCAB_SIZE, check_export, check_single_stack, close, ids, padded, randomised
from triform.run.build import build
from triform.run.compose import compose
from triform.run.pretrained import from_pretrained, save_pretrained

FULL, LOCAL = "full_attention", "sliding_attention"
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "max_position_embeddings": 32,
    "local_attention": 6,
    "pad_token_id": 1,
    "attn_implementation": "eager",
}


def made(kind: Any = ModernBertForMaskedLM, **changed: Any) -> Any:
    return randomised(kind(ModernBertConfig(**{**SIZES, **changed})))


@pytest.mark.parametrize(
    "changed",
    [
        {"norm_eps": 1e-3},
        {"tie_word_embeddings": False},
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True},
        {"decoder_bias": False, "classifier_bias": True},
        {"hidden_activation": "silu"},
        {"hidden_activation": "gelu_pytorch_tanh"},
        {"num_hidden_layers": 2},
        {"layer_types": [FULL, LOCAL, FULL, LOCAL]},
        {"layer_types": [LOCAL, LOCAL, FULL, LOCAL]},
        {"layer_types": [FULL] * 4},
        {"layer_types": [LOCAL] * 4},
        {"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 500.0}, LOCAL: {"rope_theta": 50.0}}},
        {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
                LOCAL: {"rope_type": "default", "rope_theta": 50.0},
            }
        },
        {"local_attention": 7, "attention_dropout": 0.1, "embedding_dropout": 0.2, "mlp_dropout": 0.3},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_masked_language_models_in_and_out(changed: dict[str, Any], tmp_path: Path) -> None:
    theirs = made(**changed)
    ours = check_single_stack(theirs, tmp_path / "theirs")
    config = check_export(ours, ModernBertForMaskedLM, tmp_path / "ours", ids(2, 11))
    for key in ("layer_types", "local_attention", "attention_dropout", "embedding_dropout", "mlp_dropout"):
        assert config[key] == getattr(theirs.config, key), key


def test_a_file_of_the_hub(tmp_path: Path) -> None:
    """ModernBERT-base: the pattern as a number, bases of the wavelengths as keys of their own."""
    theirs = made(
        rope_parameters={
            FULL: {"rope_type": "default", "rope_theta": 500.0},
            LOCAL: {"rope_type": "default", "rope_theta": 50.0},
        },
        layer_types=[FULL, LOCAL, FULL, LOCAL],
    )
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for key in ("rope_parameters", "layer_types"):
        del config[key]
    old = {"global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 50.0}
    path.write_text(json.dumps(config | old | {"position_embedding_type": "absolute", "reference_compile": None}))
    with torch.no_grad():
        close(from_pretrained(tmp_path)[0](ids(2, 11)).logits, theirs(ids(2, 11)).logits)


@torch.no_grad()
def test_a_model_without_a_head(tmp_path: Path) -> None:
    theirs = made(ModernBertModel)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, _ = from_pretrained(tmp_path / "theirs")
    x, mask = padded("right")
    expected = theirs(x, attention_mask=mask.long()).last_hidden_state
    close(ours(x, mask).logits[mask], expected[mask])
    save_pretrained(ours, tmp_path / "ours")
    again, info = ModernBertModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    close(again.eval()(x, attention_mask=mask.long()).last_hidden_state[mask], expected[mask])


def test_the_preset_is_what_its_name_says(tmp_path: Path) -> None:
    model = build(compose(["model=modernbert_tiny", "model.vocab_size=37"])["model"], (), "model")()
    model.initialise(0)
    config = check_export(model.eval(), ModernBertForMaskedLM, tmp_path / "ours", ids(2, 11))
    assert config["layer_types"] == [FULL, LOCAL, LOCAL]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_activation": "relu"}, r"hidden_activation='relu' is not supported; supported: "),
        ({"classifier_activation": "relu"}, r"classifier_activation='relu' is not supported; supported: 'gelu'"),
        (
            {"layer_types": [FULL, FULL, LOCAL, LOCAL]},
            r"layer_types with full attention in layers \[0, 1\] of 4 is not supported",
        ),
        (
            {"rope_parameters": {LOCAL: {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0}}},
            r"a rope_type of sliding_attention is not supported; supported: 'default'",
        ),
        (
            {"rope_parameters": {FULL: {"rope_type": "longrope", "rope_theta": 50.0}}},
            r"rope_type='longrope' is not supported",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            r"rope_parameters=.* is not supported; supported",
        ),
        ({"rope_parameters": {FULL: 3}}, r"rope_parameters: full_attention=3 is no mapping; fetch the file again"),
    ],
)
def test_what_is_not_supported_is_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    made().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ValueError, match=message) as error:
        from_pretrained(tmp_path)
    assert "\n" not in str(error.value)
