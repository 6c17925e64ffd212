"""What is said of a model from shapes alone, against the same model made and stepped."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.composed import FAMILIES, VOCAB_SIZE, build, ids, read
from triform.analysis.anatomy import Memory, memory, mib, micro_batch, optimizer_bytes, tree
from triform.run.build import build as build_part
from triform.run.compose import compose
from triform.run.help import groups

ROWS, LENGTH = 5, 16


def on_meta(family: str, *overrides: str, **arguments: Any) -> Any:
    return build(family, *overrides, **arguments).to("meta")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_is_in_the_tree_once(family: str) -> None:
    model = on_meta(family)
    n = sum(p.numel() for p in model.parameters())
    whole = tree(model, 99)
    assert whole[0].parameters == n
    assert sum(part.parameters for part in whole if part.depth == 1) == n
    blocks = [part for part in whole if part.kind == "Block"]
    assert [part.name for part in blocks] == ["layers.0-1"] * len(blocks)
    assert all(part.count == 2 for part in blocks)
    assert max(part.depth for part in tree(model, 1)) == 1


def test_a_tied_table_is_counted_where_it_is_first_and_named_where_it_is_shared() -> None:
    parts = {part.name: part for part in tree(on_meta("decoder", "model.head.tied=true"), 99)}
    assert parts["table"].shapes == (("weight", (VOCAB_SIZE, 24)),)
    assert parts["head"].shapes == (("embedding.table.weight", None),)
    assert parts["head"].parameters == 0


def test_layers_that_differ_stand_apart() -> None:
    model = nn.Sequential()
    model.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 4)])
    names = [(part.name, part.count) for part in tree(model, 9)]
    assert names == [("model", 1), ("layers.0-1", 2), ("layers.2", 1)]


@pytest.mark.parametrize("option", groups()["optimizer"])
def test_the_optimizers_state_is_as_large_as_after_a_step(option: str) -> None:
    node = compose([f"optimizer={option}"])["optimizer"]
    model = build("decoder")
    optimizer = build_part(node, key="optimizer")(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    states = [part.state for part in getattr(optimizer, "parts", [optimizer])]
    tensors = [v for state in states for one in state.values() for v in one.values() if isinstance(v, Tensor)]
    sketch = model.to("meta")
    found = optimizer_bytes(build_part(node, key="optimizer")(sketch))
    assert found == sum(v.numel() * v.element_size() for v in tensors)
    assert all(p.grad is None for p in sketch.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_near_what_a_forward_pass_keeps(family: str) -> None:
    model = build(family, "model.n_layers=4").train()
    measured = kept_bytes(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        measured_mixed = kept_bytes(model)
    measured_true = kept_bytes(model.to(torch.bfloat16))
    sketch = model.to("meta")
    node = compose([])["optimizer"]
    optimizer = build_part(node, key="optimizer")
    used = memory(sketch, optimizer, ROWS, LENGTH, "32-true")
    assert used.logits == 3 * 4 * VOCAB_SIZE * ROWS * LENGTH
    assert 0.7 * measured < used.activations < 1.4 * measured
    assert used.weights == used.gradients == 4 * sum(p.numel() for p in sketch.parameters())
    assert used.attention > 0
    mixed, true = (memory(sketch, optimizer, ROWS, LENGTH, name) for name in ("bf16-mixed", "bf16-true"))
    assert (mixed.weights, mixed.gradients, mixed.optimizer) == (used.weights, used.gradients, used.optimizer)
    assert 0.7 * measured_mixed < mixed.activations < 1.4 * measured_mixed
    assert (2 * true.weights, 2 * true.gradients) == (used.weights, used.gradients)
    assert true.optimizer < 0.51 * used.optimizer
    assert 0.7 * measured_true < true.activations < 1.4 * measured_true


def kept_bytes(model: Any) -> int:
    """What a forward pass keeps for the backward pass besides the model's parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        read(model, ids(ROWS, LENGTH))
    return sum(storage.nbytes() for storage in kept.values())


def test_memory_adds_up() -> None:
    assert Memory(1, 2, 3, 4, 5, 50).total == 15
    assert Memory(1, 2, None, None, 5, 50).total == 8
    assert mib(None) == "unknown"
    assert mib(3 * 2**19) == "1.5 MiB"
    assert mib(5000 * 2**20) == "5,000 MiB"


def test_a_micro_batch_is_what_one_device_reads() -> None:
    data = {"batch_size": 18, "batch_tokens": None, "seq_len": 8}
    trainer = {"num_nodes": 1, "accumulate": 2, "tensor_parallel": 1}
    assert micro_batch(data, trainer, 1) == 9
    assert micro_batch(data, trainer, 4) == 3
    assert micro_batch({**data, "batch_size": None, "batch_tokens": 64}, trainer, 1) == 4
    assert micro_batch(data, {**trainer, "tensor_parallel": 2}, 4) == 5, "two devices read the same rows"
