from typing import Any

import pytest
import torch
from torch import nn

from tests.models.composed import FAMILIES, build, ids, read
from triform.layers.lora import AdaptedLinear, merge


def trained(family: str, *overrides: str) -> Any:
    """A model whose adapters have learned something."""
    model = build(family, "model/adapter=lora", "model.adapter.rank=3", *overrides)
    for name, value in model.named_parameters():
        if name.endswith("adapter.up"):
            nn.init.normal_(value)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_begins_as_the_model_without_it_and_merges_to_the_same(family: str) -> None:
    plain, fresh, model = build(family), build(family, "model/adapter=lora"), trained(family)
    expected = read(plain, ids(2, 7)).logits
    assert torch.equal(read(fresh, ids(2, 7)).logits, expected)
    adapted = read(model, ids(2, 7)).logits
    assert not torch.allclose(adapted, expected, atol=1e-2)
    merge(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(read(model, ids(2, 7)).logits, adapted)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_products_learn(family: str) -> None:
    model = trained(family)
    read(model, ids(2, 7)).logits.square().sum().backward()
    learned = {name for name, value in model.named_parameters() if value.grad is not None}
    n_attention = {"encoder": 2, "decoder": 2, "encoder_decoder": 6}[family]
    assert len(learned) == n_attention * 2 * 2  # two projections of each, two matrices of each
    assert all(name.endswith(("adapter.up", "adapter.down")) for name in learned)


def test_a_head_of_classes_is_learned_too() -> None:
    model = build("encoder", "model/adapter=lora", "model/head=classification")
    learned = {name.split(".")[0] for name, value in model.named_parameters() if value.requires_grad}
    assert learned == {"head", "stack"}


def test_targets_may_be_patterns_of_whole_names() -> None:
    model = build("encoder_decoder", "model/adapter=lora", "model.adapter.targets=['decoder.*.cross_attention.k_proj']")
    found = [name for name, module in model.named_modules() if isinstance(module, AdaptedLinear)]
    assert found == [f"decoder.layers.{i}.cross_attention.k_proj" for i in range(2)]


def test_frozen_parameters_do_not_learn() -> None:
    model = build("decoder", "model.frozen=[embedding,stack.layers.0,'*.norm.weight']")
    still = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert "embedding.table.weight" in still
    assert "stack.layers.1.attn_residual.norm.weight" in still
    assert {n for n, _ in model.named_parameters() if n.startswith("stack.layers.0.")} <= still
    assert "stack.layers.1.attention.q_proj.weight" not in still


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model/adapter=lora", "model.adapter.rank=0"], r"LoRA: rank=0 is less than 1; set model\.adapter\.rank"),
        (["model/adapter=lora", "model.adapter.alpha=0"], r"LoRA: alpha=0 is not positive; set model\.adapter\.alpha"),
        (["model/adapter=lora", "model.adapter.dropout=1"], "LoRA: dropout=1 is no share"),
        (["model/adapter=lora", "model.adapter.targets=[q_prj]"], "no projection is called 'q_prj'.*nearest is q_proj"),
        (["model.frozen=[embeding]"], "'embeding' fits no parameter.*embedding"),
        (["model.frozen=[embedding,stack,head]"], "fits no parameter|leaves nothing to train"),
    ],
)
def test_refuses_what_means_nothing(overrides: list[str], message: str) -> None:
    with pytest.raises(Exception, match=message):  # instantiate wraps the ValueError
        build("decoder", *overrides)
