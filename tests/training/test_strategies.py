"""A model that is cut over ranks computes what the whole one does, whatever its parts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from tests.models.composed import CONF, FAMILIES, VOCAB_SIZE, ids, read, settings
from tests.models.test_product import EVERY, model_of
from triform.layers.losses import CrossEntropy
from triform.layers.parallel import put
from triform.run.ranks import launch
from triform.training.strategies import (
    DATA,
    TENSOR,
    SharedScaler,
    check_offload,
    check_sharding,
    check_sizes,
    shared,
)

PADDING = torch.arange(7) < torch.tensor([[7], [4], [6], [2]])
LOSS = CrossEntropy(0.0)
INDIVISIBLE = ("attention=multi_query",)
"""Two ranks cannot share its one head of keys and values."""

NOISY = ("layer_drop=constant", "layer_drop=stochastic_depth")
"""Whose noise falls on other rows where the rows are cut."""

LIKELY = [
    *(("decoder", name) for name in ("attention=sinks", "attention=qk_norm", "attention=grouped_query")),
    *(("decoder", name) for name in ("position=alibi", "position=t5", "feed_forward=swiglu", "placement=parallel")),
    *(("decoder", name) for name in ("feed_forward=mixture_shared", "biases", "norm=rms_unit_offset")),
    *(("encoder", name) for name in ("position=learned", "token types", "embedding norm", "attention=alternate")),
    *(("encoder_decoder", name) for name in ("position=t5", "n_kv_heads", "placement=deepnorm", "head_dim")),
]
"""A form of everything that is cut in a way of its own."""


def total(model: Any, rows: slice) -> Tensor:
    """Loss summed over the tokens of some rows, which are padded."""
    inputs, padding = ids(4, 7)[rows], PADDING[rows]
    labels = ids(4, 7, seed=1)[rows].where(padding, -100)
    out = read(model, inputs, padding_mask=padding)
    return model.head(out.hidden, labels, LOSS)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def compare(family: str, parts: str, mesh: Any, fully: bool) -> dict[str, float]:
    """Largest differences between a model and its cut twin, relative to the largest gradient, and of its norm."""
    whole = model_of(family, parts).train()
    whole.zero_grad()
    expected_loss = total(whole, slice(None))
    expected_loss.backward()
    expected = gradients(whole)

    factory = instantiate(settings(family, *EVERY[parts]), _convert_="all")
    with torch.device("meta"):
        cut = factory(vocab_size=VOCAB_SIZE)
    layout = shared(cut, mesh, fully)
    cut.to_empty(device="cpu")
    own = dict(cut.named_parameters())
    for name, value in whole.named_parameters():
        put(own[name], layout, name, value)
    readers, reader = mesh[DATA].size(), mesh[DATA].get_local_rank()
    loss = total(cut.train(), slice(reader, None, readers))
    loss.backward()
    layout.sum_gradients(cut.named_parameters())
    found = {name: layout.whole(name, gradient) * readers for name, gradient in gradients(cut).items()}
    norm = layout.gradient_norm(cut.named_parameters()) * readers

    assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    dist.all_reduce(loss := loss.detach().clone())
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    errors = {name: float((found[name] - gradient).abs().max()) / scale for name, gradient in expected.items()}
    expected_norm = nn.utils.get_total_norm(list(expected.values()))
    return {
        **errors,
        "norm": float((norm - expected_norm).abs() / expected_norm),
        "loss": float((loss / layout.copies - expected_loss.detach()).abs() / expected_loss.detach()),
    }


def walk(folder: Path, cases: Sequence[tuple[str, str]], sizes: tuple[int, int], fully: bool) -> int:
    """One rank's part of comparing all cases; the first one writes what it found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=(DATA, TENSOR))
    found = {f"{family} {parts}": compare(family, parts, mesh, fully) for family, parts in cases}
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    return 0


def check(folder: Path, cases: Sequence[tuple[str, str]], sizes: tuple[int, int], fully: bool) -> None:
    assert launch(sizes[0] * sizes[1], walk, (folder, cases, sizes, fully)) == 0
    found = json.loads((folder / "found.json").read_text())
    assert len(found) == len(cases)
    for case, errors in found.items():
        worst = max(errors, key=errors.__getitem__)
        assert errors[worst] < 1e-5, f"{case}: {worst} differs by {errors[worst]}"


def test_ranks_that_share_layers_have_the_gradient_of_one(tmp_path: Path) -> None:
    check(tmp_path, LIKELY, (1, 2), fully=False)


def test_ranks_that_hold_shards_have_the_gradient_of_one(tmp_path: Path) -> None:
    check(tmp_path, LIKELY[::2], (2, 1), fully=True)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "fully"), [((1, 2), False), ((2, 1), True), ((2, 2), True)])
def test_every_part_can_be_cut(tmp_path: Path, sizes: tuple[int, int], fully: bool) -> None:
    left_out = (*NOISY, *(INDIVISIBLE if sizes[1] > 1 else ()))
    check(tmp_path, [(f, parts) for f in FAMILIES for parts in EVERY if parts not in left_out], sizes, fully)


def narrowed(folder: Path, cases: Sequence[tuple[str, str]]) -> int:
    """One rank's part of the same in mixed precision, beside what mixed precision does to the whole model."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=(DATA, TENSOR))
    found = {}
    for family, parts in cases:
        whole = model_of(family, parts).train()
        runs = []
        for mixed in (False, True):
            whole.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                total(whole, slice(None)).backward()
            runs.append({name: gradient.clone() for name, gradient in gradients(whole).items()})
        factory = instantiate(settings(family, *EVERY[parts]), _convert_="all")
        with torch.device("meta"):
            cut = factory(vocab_size=VOCAB_SIZE)
        layout = shared(cut, mesh, True, narrow=torch.bfloat16)
        cut.to_empty(device="cpu")
        own = dict(cut.named_parameters())
        for name, value in whole.named_parameters():
            put(own[name], layout, name, value)
        with torch.autocast("cpu", torch.bfloat16):
            loss = total(cut.train(), slice(dist.get_rank(), None, 2))
        loss.backward()
        runs.append({name: 2 * layout.whole(name, gradient) for name, gradient in gradients(cut).items()})
        assert {gradient.dtype for gradient in runs[-1].values()} == {torch.float32}
        scale = max(float(gradient.abs().max()) for gradient in runs[0].values())
        found[f"{family} {parts}"] = {
            name: [float((run[name] - runs[1][name]).abs().max()) / scale for run in (runs[0], runs[2])]
            for name in runs[1]
        }
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    return 0


def test_blocks_that_are_sent_narrow_have_the_gradient_of_mixed_precision(tmp_path: Path) -> None:
    """Both round what float32 computes, in other places: they differ by no more than each does from that."""
    cases = [("encoder", "position=learned"), ("decoder", "feed_forward=swiglu"), ("encoder_decoder", "position=t5")]
    assert launch(2, narrowed, (tmp_path, cases)) == 0
    for case, errors in json.loads((tmp_path / "found.json").read_text()).items():
        by_type, by_cut = (max(found) for found in zip(*errors.values(), strict=True))
        assert 0 < by_cut < 2 * by_type, case


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            "attention=multi_query",
            r"Attention: n_kv_heads=1 is not a multiple of trainer\.tensor_parallel=2; set trainer",
        ),
        (
            "feed_forward=relu",
            r"FeedForward: d_ff=40 is not a multiple of trainer\.tensor_parallel=3; .* of model\.d_ff",
        ),
    ],
)
def test_what_the_ranks_do_not_divide_is_refused(parts: str, message: str) -> None:
    size = 3 if "feed_forward" in parts else 2
    overrides = (*EVERY[parts], *(("model.n_heads=6",) if size == 3 else ()))
    with torch.device("meta"):
        model = instantiate(settings("decoder", *overrides), _convert_="all")(vocab_size=VOCAB_SIZE)
    with pytest.raises(ValueError, match=message):
        check_sharding("tensor_parallel", size, model, torch.optim.AdamW(model.parameters()))


@pytest.mark.parametrize(
    ("name", "ranks", "tensor_parallel", "message"),
    [
        (
            "fsdp",
            4,
            3,
            r"tensor_parallel=3 does not divide the 4 ranks .* set trainer\.tensor_parallel to a divisor of 4",
        ),
        ("tensor_parallel", 4, 2, r"tensor_parallel=2 is not all 4 ranks; set it to 4, or trainer=fsdp_tp"),
        ("ddp", 4, 2, r"tensor_parallel=2 has no meaning under strategy=ddp; set trainer=tensor_parallel"),
    ],
)
def test_sizes_that_do_not_multiply_are_refused(name: str, ranks: int, tensor_parallel: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_sizes(name, ranks, tensor_parallel)


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "device"), [("fsdp", 1, "cpu"), ("fsdp", 2, "cuda"), ("ddp", 1, "cuda")]
)
def test_offload_of_what_is_not_cut_is_refused(name: str, tensor_parallel: int, device: str) -> None:
    with pytest.raises(
        ValueError, match=r"cpu_offload=true has no meaning under strategy=.*; set trainer\.cpu_offload"
    ):
        check_offload(name, tensor_parallel, device, wanted=True)
    check_offload(name, tensor_parallel, device, wanted=False)
    check_offload("fsdp", 1, "cuda", wanted=True)


def scaled(folder: Path) -> int:
    """One rank's part of a step that is skipped as the gradient of the last rank alone is infinite."""
    dist.init_process_group("gloo")
    weight = nn.Parameter(torch.ones(3))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), SharedScaler("cpu", init_scale=4.0)
    for infinite in (True, False):
        weight.grad = torch.full((3,), torch.inf if infinite and dist.get_rank() == 1 else 4.0)
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
        scaler.update()
        (folder / f"{dist.get_rank()}{infinite}.json").write_text(json.dumps([weight.tolist(), scaler.get_scale()]))
    dist.destroy_process_group()
    return 0


def test_all_ranks_skip_a_step_that_overflows_on_one(tmp_path: Path) -> None:
    assert launch(2, scaled, (tmp_path,)) == 0
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}True.json").read_text()) == [[1.0, 1.0, 1.0], 2.0]
        assert json.loads((tmp_path / f"{rank}False.json").read_text()) == [[-1.0, -1.0, -1.0], 2.0]


@pytest.mark.parametrize("name", ["muon", "adafactor"])
def test_optimizers_of_whole_matrices_are_refused(name: str) -> None:
    model = model_of("decoder", "norm=rms")
    optimizer = instantiate(OmegaConf.load(CONF / "optimizer" / f"{name}.yaml"), _convert_="all")(model)
    with pytest.raises(
        ValueError, match=rf"optimizer: {name} looks at whole matrices.*set optimizer=adamw, or trainer"
    ):
        check_sharding("fsdp", 1, model, optimizer)
    check_sharding("ddp", 1, model, optimizer)
