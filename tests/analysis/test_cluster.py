"""What many devices hold and send, against the same model cut for process groups that only pretend to be there."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from triform.analysis.anatomy import kept
from triform.analysis.cluster import Cut, Traffic, cut_of, lean
from triform.layers.block import Block
from triform.layers.parallel import local
from triform.layers.recompute import recompute
from triform.run.compose import compose
from triform.run.job import settled
from triform.run.sketch import sketch
from triform.training.strategies import DATA, TENSOR, shared

WORDS = ("task=causal_lm", "data=text", "data.train_files=none.txt", "tokenizer=byte")
TINY = ("model=llama_tiny", "model.d_model=32", "model.n_heads=4", "model.n_kv_heads=2", "model.d_ff=48")


@pytest.fixture
def ranks() -> Iterator[Any]:
    """Makes a mesh of so many data and tensor ranks, this one the first."""

    def mesh(data: int, tensor: int) -> DeviceMesh:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=data * tensor)
        return init_device_mesh("cpu", (data, tensor), mesh_dim_names=(DATA, TENSOR))

    yield mesh
    if dist.is_initialized():
        dist.destroy_process_group()


def made(*words: str) -> nn.Module:
    config = settled(compose([*WORDS, *words]))
    return sketch(config, None, None).model(config)


def held(model: nn.Module) -> dict[str, torch.Size]:
    return {name: local(parameter).shape for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("words", "data", "tensor", "fully"),
    [
        (["model=llama3_8b"], 64, 1, True),
        (["model=llama3_8b"], 64, 8, True),
        (["model=llama3_8b"], 1, 8, False),
        ([*TINY, "model.vocab_size=41", "model.d_ff=50"], 3, 2, True),  # which 3 does not divide
    ],
    ids=["8x8 fsdp", "64x8 fsdp and tensor parallel", "tensor parallel", "uneven"],
)
def test_a_device_holds_what_it_is_planned_to(
    words: Sequence[str], data: int, tensor: int, fully: bool, ranks: Any
) -> None:
    planned, measured = made(*words), made(*words)
    whole = sum(parameter.numel() for parameter in planned.parameters())
    cut = Cut(data, tensor, fully)
    cut.share(planned)
    cut.hold(planned)
    shared(measured, ranks(data, tensor), fully)
    assert held(planned) == held(measured)
    if words[0] == "model=llama3_8b":
        assert whole == 8_030_261_248
        shares = sum(parameter.numel() for parameter in planned.parameters())
        assert shares >= whole / data / tensor


class Counted:
    """Bytes that this rank would send, by what sends them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data, self.tensor = 0.0, 0.0
        reduce = dist.all_reduce

        def all_reduce(tensor: torch.Tensor, *args: Any, group: Any = None, **more: Any) -> Any:
            size = dist.get_world_size(group)
            self.tensor += 2 * (size - 1) / size * tensor.nbytes
            return reduce(tensor, *args, group=group, **more)

        monkeypatch.setattr(dist, "all_reduce", all_reduce)
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_single", "reduce_scatter_single"):
            if hasattr(dist, name):  # as older and newer releases of torch call them
                monkeypatch.setattr(dist, name, self._between_groups(getattr(dist, name)))

    def _between_groups(self, function: Any) -> Any:
        def counted(*args: Any, **named: Any) -> Any:
            first, second = [x for x in (*args, *named.values()) if isinstance(x, torch.Tensor)]
            self.data += abs(first.nbytes - second.nbytes)
            return function(*args, **named)

        return counted


@pytest.mark.parametrize(
    ("data", "tensor", "narrow"), [(4, 1, None), (1, 2, None), (4, 2, None), (4, 1, torch.bfloat16)]
)
def test_devices_send_what_they_are_planned_to(
    data: int, tensor: int, narrow: torch.dtype | None, ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*TINY, "model.n_layers=3", "model.vocab_size=40", "model.dropout=0")
    rows, seq_len = 3, 6
    planned, model = made(*words), made(*words)
    cut = Cut(data, tensor, data > 1, 1.0 if narrow is None else 0.5)
    cut.share(planned)
    traffic = cut.traffic(planned, rows, seq_len, 1, 4)
    shared(model, ranks(data, tensor), data > 1, narrow=narrow)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(local(parameter), 0.1)
    counted = Counted(monkeypatch)
    with torch.autocast("cpu", narrow, enabled=narrow is not None):
        out: Any = model(torch.ones(rows, seq_len, dtype=torch.long))
    out.logits.sum().backward()
    assert counted.data == traffic.data
    assert counted.tensor == traffic.tensor


@pytest.mark.parametrize("fully", [False, True])
def test_autocast_copies_what_is_planned(fully: bool, ranks: Any) -> None:
    """What is left of weights when the forward pass is over: FSDP gives blocks up, and there are no copies of them."""
    model: Any = made(*TINY, "model.n_layers=3", "model.vocab_size=40", "model.dropout=0")
    matrices = {shape for p in model.parameters() if p.ndim == 2 for shape in (p.shape, p.shape[::-1])}
    tables = model.embedding.table.weight.nbytes
    planned = Cut(4, 1, fully, 0.5).copied(model, False)
    if fully:
        shared(model, ranks(4, 1), True, narrow=torch.bfloat16)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(local(parameter), 0.1)
    kept_for_backward: dict[int, torch.UntypedStorage] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.bfloat16 and x.shape in matrices:
            kept_for_backward[x.untyped_storage()._cdata] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", torch.bfloat16):
        model(torch.ones(3, 6, dtype=torch.long))
    vectors = 2 * 32 * 4 * 3 + 32 * 4 if not fully else 32 * 4  # of norms, of which there are no copies
    assert sum(storage.nbytes() for storage in kept_for_backward.values()) == (planned - tables - vectors) // 2


def test_under_ddp_gradients_go_round_once(ranks: Any) -> None:
    model = made(*TINY)
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert Cut(4, 1, False).traffic(model, 3, 6, 5, 4) == Traffic(round(2 * 3 / 4 * 4 * whole), 0)


def test_a_step_waits_for_what_is_not_hidden() -> None:
    traffic = Traffic(data=800, tensor=60)
    assert traffic.seconds(5.0, 100.0, 20.0) == 8.0 + 3.0
    assert traffic.seconds(9.0, 100.0, 20.0) == 9.0 + 3.0
    assert traffic.seconds(9.0, float("inf"), float("inf")) == 9.0


def test_sizes_that_do_not_fit_are_refused() -> None:
    trainer = {"num_nodes": 2, "tensor_parallel": 3, "strategy": "fsdp"}
    assert cut_of(trainer, 6, "32-true") == Cut(4, 3, True, 1.0)
    assert cut_of(trainer, 6, "bf16-mixed") == Cut(4, 3, True, 0.5)
    with pytest.raises(ValueError, match=r"tensor_parallel=3 does not divide the 8 ranks"):
        cut_of(trainer, 4, "32-true")
    with pytest.raises(ValueError, match=r"n_heads=4 is not a multiple of trainer\.tensor_parallel=3"):
        Cut(2, 3, True).share(made(*TINY))


def test_blocks_computed_again_keep_their_inputs() -> None:
    model = made(*TINY, "model.n_layers=3")
    row = kept(model, 6)
    assert row is not None
    inputs = 3 * 6 * 32 * 4
    assert row.inputs == inputs
    assert lean(model, 6, row, 4, selective=False) == inputs + row.activations // 3
    outputs = (32 + 16 + 16 + 32 + 48 + 48 + 32) + 32  # of the projections, and of attention
    assert lean(model, 6, row, 4, selective=True) == inputs + 3 * 6 * outputs * 4 + row.activations // 3


def test_a_block_computed_again_keeps_what_is_planned() -> None:
    """Measured between the passes, so without the one block that is computed again."""
    words = (*TINY, "model.n_layers=6", "model.dropout=0")
    row = kept(made(*words), 16)
    assert row is not None
    planned = lean(made(*words), 16, row, 4, selective=False)
    model: Any = made(*words).to_empty(device="cpu")
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    recompute(blocks, "block")
    held = {parameter.untyped_storage()._cdata: 0 for parameter in model.parameters()}

    def keep(x: torch.Tensor) -> torch.Tensor:
        held.setdefault(x.untyped_storage()._cdata, x.untyped_storage().nbytes())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model(torch.ones(1, 16, dtype=torch.long))
    assert planned - row.activations // 6 <= sum(held.values()) < planned < row.activations
