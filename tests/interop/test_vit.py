import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification, ViTForMaskedImageModeling, ViTModel

from tests.interop.parity import close, randomised
from triform.run.build import build
from triform.run.compose import compose
from triform.run.pretrained import from_pretrained, save_pretrained

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 12,
    "patch_size": 4,
    "num_channels": 2,
    "num_labels": 5,
    "attn_implementation": "eager",
}


def made(kind: Any = ViTForImageClassification, **changed: Any) -> Any:
    return randomised(kind(ViTConfig(**{**SIZES, **changed})))


def images() -> Tensor:
    return torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize(
    "changed",
    [
        {"layer_norm_eps": 1e-3},
        {"qkv_bias": False},
        {"hidden_act": "gelu_new", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2},
        {"image_size": [12, 12], "patch_size": [3, 3]},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_classifiers_in_and_out(changed: dict[str, Any], tmp_path: Path) -> None:
    theirs = made(**changed)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, tokenizer = from_pretrained(tmp_path / "theirs")
    assert tokenizer is None
    expected = theirs(images()).logits
    close(ours(images()).logits[:, 0], expected)
    save_pretrained(ours, tmp_path / "ours")
    again, info = ViTForImageClassification.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    close(again.eval()(images()).logits, expected)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "qkv_bias"):
        assert getattr(again.config, key) == getattr(theirs.config, key), key


@torch.no_grad()
@pytest.mark.parametrize("pooler", [True, False])
def test_models_without_a_classifier(pooler: bool, tmp_path: Path) -> None:
    theirs = randomised(ViTModel(ViTConfig(**SIZES), add_pooling_layer=pooler))
    theirs.save_pretrained(tmp_path / "theirs")
    ours, _ = from_pretrained(tmp_path / "theirs")
    expected, output = theirs(images()), ours(images())
    close(output.hidden, expected.last_hidden_state)
    close(output.logits[:, 0], expected.pooler_output if pooler else expected.last_hidden_state[:, 0])
    save_pretrained(ours, tmp_path / "ours")
    again, info = ViTModel.from_pretrained(tmp_path / "ours", output_loading_info=True, add_pooling_layer=pooler)
    assert not any(info.values()), info
    close(again.eval()(images()).last_hidden_state, expected.last_hidden_state)


@torch.no_grad()
def test_names_of_the_modules_are_read_too(tmp_path: Path) -> None:
    theirs = made()
    theirs.save_pretrained(tmp_path)
    save_file(dict(theirs.state_dict()), tmp_path / "model.safetensors")
    assert "vit.layers.0.mlp.fc1.weight" in load_file(tmp_path / "model.safetensors")
    close(from_pretrained(tmp_path)[0](images()).logits[:, 0], theirs(images()).logits)


@torch.no_grad()
def test_the_preset_is_what_its_name_says(tmp_path: Path) -> None:
    model = build(compose(["model=vit_tiny"])["model"], (), "model")()
    model.initialise(0)
    save_pretrained(model.eval(), tmp_path / "ours")
    theirs, info = ViTForImageClassification.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    digits = torch.rand(3, 1, 8, 8)
    close(model(digits).logits[:, 0], theirs.eval()(digits).logits)
    assert theirs.config.num_labels == 10


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        (ViTForImageClassification, {"hidden_act": "mish"}, r"hidden_act='mish' is not supported; supported: "),
        (
            ViTForImageClassification,
            {"image_size": [12, 16]},
            r"image_size=\[12, 16\] is not supported; supported: squares",
        ),
        (ViTForImageClassification, {"patch_size": 5}, r"image_size=12 is not a multiple of patch_size=5"),
        (ViTForImageClassification, {"id2label": {"0": "A"}}, r"1 labels in id2label is not supported; supported: 2"),
        (ViTModel, {"pooler_act": "relu"}, r"pooler_act='relu' is not supported; supported: 'tanh'"),
        (ViTModel, {"pooler_output_size": 7}, r"pooler_output_size=7 is not supported; supported: 24"),
        (ViTForMaskedImageModeling, {}, r"architecture ViTForMaskedImageModeling is not supported; supported: "),
    ],
)
def test_what_is_not_supported_is_refused(kind: Any, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    made(kind, encoder_stride=4).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ValueError, match=message) as error:
        from_pretrained(tmp_path)
    assert "\n" not in str(error.value)
