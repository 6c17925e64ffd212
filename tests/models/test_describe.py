"""A model tells the config that builds it again."""

from functools import partial

import pytest
import torch
from hydra.utils import instantiate

from tests.models.composed import FAMILIES, FILES, PARTS, VOCAB_SIZE, build, chosen, settings
from triform.models.describe import described


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("group", "name"), PARTS)
def test_every_part_is_described_as_it_was_configured(family: str, group: str, name: str) -> None:
    extra = chosen(group, name)
    if name == "alternate":
        extra = (*extra, "model.attention.local.window=3", "model/position=rotary")
    if name == "alternate_nope":
        extra = (*extra, "model/position=rotary")
    node = settings(family, *extra)
    model = build(family, *extra)
    found = described(model)
    assert found.pop("vocab_size") == VOCAB_SIZE
    for absent in (
        "n_tokens",
        "n_source_tokens",
        "embedding_norm",
        "embedding",
        "adapter",
    ):  # arguments that conf/ leaves out
        assert found.pop(absent, None) is None
    if name == "rotary_yarn":  # null stands for a value that follows from the factor
        scaling = model.stack.position.scaling if family != "encoder_decoder" else model.decoder.position.scaling
        node = {**node, "position": {**node["position"]}}
        node["position"]["scaling"] = {**node["position"]["scaling"], "attention_factor": scaling.attention_factor}
    assert found == {key: value for key, value in node.items() if key != "vocab_size"}


@pytest.mark.parametrize("head", [name for group, name in FILES if group == "head"])
def test_every_head_is_described_as_it_was_configured(head: str) -> None:
    node, model = settings("encoder", f"model/head={head}"), build("encoder", f"model/head={head}")
    assert described(model)["head"] == node["head"]
    again = instantiate(described(model), _convert_="all")()
    assert {n: p.shape for n, p in again.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}


def test_an_encoder_of_images_is_described_as_it_was_configured() -> None:
    words = ("model/embedding=patches", "model.embedding.image_size=12", "model.embedding.patch_size=4")
    node = settings("encoder", *words, "model/head=classification_linear")
    found = described(build("encoder", *words, "model/head=classification_linear", vocab_size=None))
    assert (found["embedding"], found["head"]) == (node["embedding"], node["head"])
    assert described(instantiate(found, _convert_="all")()) == found


def test_a_model_built_in_python_is_described_and_built_again() -> None:
    factory = instantiate(settings("decoder"), _convert_="all")
    model = factory(vocab_size=11, d_ff=48, norm=partial(torch.nn.LayerNorm, eps=1e-3))
    node = described(model)
    assert node["norm"] == {"_target_": "torch.nn.LayerNorm", "_partial_": True, "eps": 1e-3}
    again = instantiate(node, _convert_="all")()
    assert described(again) == node
    assert {n: p.shape for n, p in again.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}


def test_a_part_that_no_config_can_name_is_refused() -> None:
    factory = instantiate(settings("decoder"), _convert_="all")
    model = factory(vocab_size=11, norm=lambda width: torch.nn.LayerNorm(width))
    with pytest.raises(ValueError, match=r"model.norm=.*lambda.* is no part that a config can name"):
        described(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_is_described(family: str) -> None:
    extra = ("model/adapter=lora", "model.frozen=[embedding]")
    found = described(build(family, *extra))
    assert {key: found[key] for key in ("adapter", "frozen")} == {
        key: settings(family, *extra)[key] for key in ("adapter", "frozen")
    }
