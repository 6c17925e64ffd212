"""Every part in conf/model works in every family, from the command line."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from tests.models.composed import CONF, FAMILIES, FILES, NEEDS, PARTS, VOCAB_SIZE, build, chosen, ids, read
from triform.layers.losses import CrossEntropy


def step(model: nn.Module) -> None:
    """A training step's forward and backward; every parameter gets a finite gradient, not all of it zero."""
    model.train()
    input_ids = ids(8, 7)  # enough rows for no layer to be skipped by all
    padding = torch.arange(7) < torch.tensor([7, 5, 7, 7, 1, 7, 7, 3])[:, None]
    output = read(model, input_ids, padding_mask=padding)
    loss = model.head(output.hidden, input_ids.masked_fill(~padding, -100), CrossEntropy(0.1))
    assert loss.isfinite()
    loss.backward()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.ne(0).any() or ".experts." in name, name  # no token may have chosen that one


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("group", "name"), PARTS)
def test_every_part_under_every_family(family: str, group: str, name: str) -> None:
    step(build(family, *chosen(group, name)))


def test_there_are_parts_to_walk() -> None:
    assert {group for group, _ in PARTS} == {
        "attention",
        "feed_forward",
        "init",
        "layer_drop",
        "norm",
        "placement",
        "position",
    }


@pytest.mark.parametrize(("group", "name"), [part for part in PARTS if part[0] != "init"])
def test_every_part_of_one_stack(group: str, name: str) -> None:
    stack = ("encoder", "decoder")[PARTS.index((group, name)) % 2]
    own = f"model.{stack}."
    needs = [need.replace("model.", own) for need in NEEDS.get(name, ())]
    step(build("encoder_decoder", f"model/{group}@{own}{group}={name}", *needs))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_layers_share_a_parameter(family: str) -> None:
    model = build(family)
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    assert [names for names in owners.values() if len(names) > 1] == []
    layers = model.decoder.layers if family == "encoder_decoder" else model.stack.layers
    for (name, first), second in zip(layers[0].named_parameters(), layers[1].parameters(), strict=True):
        if first.ndim > 1:
            assert not torch.equal(first, second), name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_stays_tied_and_is_one_key(family: str) -> None:
    model = build(family)
    assert model.head.weight is model.embedding.table.weight
    assert [key for key, value in model.state_dict().items() if VOCAB_SIZE in value.shape] == [
        "embedding.table.weight"
    ] + (["head.bias"] if family == "encoder" else [])
    untied = build(family, "model.head.tied=false")
    assert untied.head.weight is not untied.embedding.table.weight
    step(untied)


@pytest.mark.parametrize("family", FAMILIES)
def test_initialise_fills_everything_and_only_the_seed_decides(family: str) -> None:
    first, again, other = build(family, seed=1), build(family, seed=1), build(family, seed=2)
    for name, value in first.state_dict().items():
        assert value.isfinite().all(), name
        assert torch.equal(value, again.state_dict()[name]), name
    assert not torch.equal(first.embedding.table.weight, other.embedding.table.weight)


def test_parts_that_variants_share_start_equal() -> None:
    """A deeper model, another position part: what has the same name has the same values."""
    first, second = build("decoder"), build("decoder", "model/position=learned", "model.n_layers=3")
    name = "stack.layers.1.attention.q_proj.weight"
    assert torch.equal(first.get_parameter(name), second.get_parameter(name))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.n_heads=5"], r"d_model=24 is not a multiple of n_heads=5; .* such as 4 or 6"),
        (["model.n_kv_heads=3"], r"n_heads=4 is not a multiple of n_kv_heads=3"),
        (["model.n_layers=0"], r"n_layers=0 is less than 1; set model\.n_layers"),
        (["model.dropout=1.5"], r"dropout=1\.5 is no share; set model\.dropout"),
        (["model/position=rotary", "model.head_dim=5"], r"head_dim=5 is odd"),
    ],
)
def test_refuses_in_one_line(family: str, overrides: list[str], message: str) -> None:
    with pytest.raises(Exception, match=message) as error:
        build(family, *overrides)
    cause: Any = error.value.__cause__ or error.value
    assert isinstance(cause, ValueError)
    assert "\n" not in str(cause)


def test_a_vocabulary_of_nothing_is_refused() -> None:
    with pytest.raises(Exception, match=r"vocab_size=0 is less than 1; set model\.vocab_size"):
        build("decoder", vocab_size=0)


@pytest.mark.parametrize(("group", "name"), FILES)
def test_every_part_is_written_down(group: str, name: str) -> None:
    assert f"`{group}={name}`" in (CONF.parent / "docs" / "parts.md").read_text(encoding="utf-8")


def test_files_that_the_page_of_parts_names_exist() -> None:
    page = CONF.parent / "docs" / "parts.md"
    for link in re.findall(r"\]\((\.\./[^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).is_file(), link
