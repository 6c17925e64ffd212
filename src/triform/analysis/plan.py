"""What a run will be, before it is queued: from its overrides alone, on the meta device, without writing anything."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from triform.analysis.anatomy import DTYPES, MIB, MIXED, Memory, kept, memory, mib, micro_batch
from triform.analysis.cluster import Cut, Traffic, cut_of, lean
from triform.models.cost import count_parameters, flops_per_token
from triform.run.build import build
from triform.run.check import check_content, check_keys
from triform.run.compose import compose
from triform.run.errors import BadInput, one_line
from triform.run.job import settled
from triform.run.match import matched, said
from triform.run.parts import check_data, known_data
from triform.run.relations import check_reach
from triform.run.sketch import Effort, effort, sketch
from triform.training.hardware import device_type, matmul_ceiling, pick_precision
from triform.training.strategies import NARROW


@dataclass
class Machine:
    """What runs are planned for.

    Args:
        flops: floating-point operations per second of a device at matrix products; None: measured here.
        mfu: share of them that training reaches.
        devices: of each machine; None: as the config says.
        memory: of a device, in GiB; None: that of a GPU here, else unknown.
        link: bytes a second that a device sends to another one of its machine; None: communication is free.
        network: the same to other machines.
    """

    flops: float | None
    mfu: float
    devices: int | None
    memory: float | None
    link: float | None = None
    network: float | None = None

    def __post_init__(self) -> None:
        self._measured: dict[tuple[str, str], float] = {}

    def rate(self, device: str, precision: str) -> float:
        """FLOP/s of a device at matrix products.

        Raises:
            BadInput: there is no such device here to measure.
        """
        if self.flops is not None:
            return self.flops
        if device == "cuda" and not torch.cuda.is_available():
            raise BadInput("there is no GPU here to measure; give its FLOP/s: --flops 4e14")
        if (device, precision) not in self._measured:
            self._measured[device, precision] = matmul_ceiling(device, precision)
        return self._measured[device, precision]

    def bytes(self, device: str) -> float:
        """Memory of a device; infinite where it is not known."""
        if self.memory is not None:
            return self.memory * 1024 * MIB
        if device == "cuda" and torch.cuda.is_available():
            return float(torch.cuda.get_device_properties(0).total_memory)
        return math.inf


@dataclass(frozen=True)
class Plan:
    """What a run will be.

    Args:
        varied: what of its overrides differs from other runs.
        seq_len: tokens of a row.
        rows: that a device reads at a time, at most.
        devices: in all.
        rate: FLOP/s of a device at matrix products.
        tokens: read; None: not known.
        is_exact: whether `tokens` are counted over the data, else estimated.
        hours: of training, without validation; None: not known.
        strategy: how devices share the work, and `cut` what that means.
        checkpointed: bytes of activations where each block is computed again in the backward pass; None: not known.
        traffic: of an optimizer step.
        step_seconds: of an optimizer step with full rows, communication included.
        mfu: share of `rate` that is expected, communication included.
        matched: what `match` has solved, and `difference` what is left.
        notes: what is assumed.
    """

    varied: str
    parameters: int
    flops_per_token: float
    seq_len: int
    rows: int
    device: str
    devices: int
    precision: str
    memory: Memory
    effort: Effort
    rate: float
    tokens: int | None
    is_exact: bool
    hours: float | None
    strategy: str
    nodes: int
    cut: Cut
    activation_checkpointing: str
    checkpointed: int | None
    traffic: Traffic
    step_seconds: float
    mfu: float
    matched: str | None
    difference: float | None
    notes: Sequence[str]

    @property
    def flops(self) -> float | None:
        """Of all training."""
        return None if self.tokens is None else self.tokens * self.flops_per_token

    def of(self, varied: str) -> "Plan":
        """The same for a run that differs from it in nothing that matters here."""
        return replace(self, varied=varied)

    def figures(self) -> dict[str, Any]:
        """As plain numbers and texts."""
        return asdict(self) | {"flops": self.flops, "memory": asdict(self.memory) | {"total": self.memory.total}}


def plan(overrides: Sequence[str], folders: Sequence[Path], machine: Machine) -> Plan:
    """Compose a run, check it and build it without memory.

    Data that is prepared already is read; other data is assumed. Whether this machine has the devices and folders does
    not matter.

    Raises:
        ValueError: the run cannot work, or does not fit into the memory of a device.
    """
    config = settled(compose(overrides, folders))
    check_keys(config)
    check_reach(config, overrides)
    words = [*overrides, *(f"--config-dir={folder}" for folder in folders)]
    check_content(config)
    check_data(config)
    config = matched(config, words, find=known_data)
    prepared = known_data(config)
    labels = None if prepared is None else prepared.labels
    known = sketch(config, None if prepared is None else prepared.tokenizer, labels)
    model: Any = known.model(config)
    n_parameters, per_token = count_parameters(model), flops_per_token(model, known.seq_len)
    spent = effort(config, prepared)

    trainer = config["trainer"]
    device, devices = _devices(trainer, machine)
    elsewhere = trainer["precision"] == "auto" and device == "cuda" and not torch.cuda.is_available()
    precision = "bf16-mixed" if elsewhere else pick_precision(trainer["precision"], device)
    cut = cut_of(trainer, devices, precision)
    rows = micro_batch(config["data"], trainer, devices)
    optimizer = build(config["optimizer"], config["trust"], "optimizer")
    try:
        build(config["scheduler"], config["trust"], "scheduler")(0, 1)
    except (TypeError, ValueError) as error:
        raise BadInput(f"scheduler: {one_line(error)}; see python train.py --help scheduler") from error
    model.to(DTYPES.get(precision, torch.float32))
    cut.share(model)
    mode, size = trainer["activation_checkpointing"], 4 if precision.startswith("32") else 2
    traffic = cut.traffic(model, rows, known.seq_len, trainer["accumulate"], size, mode != "none")
    row, copies = kept(model, known.seq_len), 0
    if row is not None and precision in NARROW:
        row, copies = row._replace(activations=round(MIXED * row.activations)), cut.copied(model, True) // 2
    block, selective = (
        None if row is None else rows * lean(model, known.seq_len, row, size, chosen) + copies
        for chosen in (False, True)
    )
    try:
        used = memory(model, optimizer, rows, known.seq_len, precision, cut.hold, cut.copied(model, False))
    except (TypeError, ValueError) as error:
        raise BadInput(f"optimizer: {one_line(error)}; see python train.py --help optimizer") from error
    if mode != "none":
        used = replace(used, activations=block if mode == "block" else selective)
    if used.total > machine.bytes(device):
        raise BadInput(
            f"memory: {mib(used.total)} of a device are needed, {mib(int(machine.bytes(device)))} are there; lower "
            "data.batch_size, data.seq_len or the model, raise trainer.accumulate or trainer.devices, or set "
            "trainer.activation_checkpointing=block or trainer=fsdp"
        )
    all_devices = devices * trainer["num_nodes"]
    rate = machine.rate(device, precision)
    sides = 2 if model.family == "encoder_decoder" else 1
    read = sides * rows * known.seq_len * trainer["accumulate"] * cut.data
    compute = read * per_token / (all_devices * rate * machine.mfu)  # seconds
    if mode == "block":
        compute *= 4 / 3  # the forward pass is a third of all work
    within, across = machine.link or math.inf, machine.network or math.inf
    seconds = traffic.seconds(
        compute, within if trainer["num_nodes"] == 1 else across, within if cut.tensor <= devices else across
    )
    tokens_per_hour = 3600 * read / seconds
    hours = None if spent.tokens is None else spent.tokens / tokens_per_hour
    tokens, is_exact = spent.tokens, spent.is_exact
    if spent.hours is not None and (hours is None or hours > spent.hours):
        hours, tokens, is_exact = spent.hours, round(spent.hours * tokens_per_hour), False
    result = config["match"].get("result")
    return Plan(
        varied="",
        parameters=n_parameters,
        flops_per_token=per_token,
        seq_len=known.seq_len,
        rows=rows,
        device=device,
        devices=all_devices,
        precision=precision,
        memory=used,
        effort=spent,
        rate=rate,
        tokens=tokens,
        is_exact=is_exact,
        hours=hours,
        strategy=_strategy(trainer, all_devices),
        nodes=trainer["num_nodes"],
        cut=cut,
        activation_checkpointing=mode,
        checkpointed=block,
        traffic=traffic,
        step_seconds=seconds,
        mfu=read * per_token / (all_devices * rate * seconds),
        matched=said(config),
        difference=None if result is None else result["difference"],
        notes=[*known.notes, *_notes(config, spent, cut.data, precision if elsewhere else None)],
    )


def _devices(trainer: Mapping[str, Any], machine: Machine) -> tuple[str, int]:
    """The device's type, and how many each machine has: as many as asked for, whatever is here."""
    device = "cuda" if trainer["accelerator"] in ("gpu", "cuda") else device_type(trainer["accelerator"])
    wanted = trainer["devices"] if machine.devices is None else machine.devices
    if wanted == "auto":
        wanted = max(torch.cuda.device_count(), 1) if device == "cuda" else 1
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise BadInput(f"trainer.devices={wanted} is not a whole number above 0; set trainer.devices=1 or auto")
    return device, wanted


def _strategy(trainer: Mapping[str, Any], devices: int) -> str:
    """`trainer.strategy`, with what auto means."""
    name = str(trainer["strategy"])
    return name if name != "auto" else "alone" if devices == 1 else "ddp"


def _notes(config: Mapping[str, Any], spent: Effort, readers: int, assumed: str | None) -> list[str]:
    notes = [] if assumed is None else [f"precision: {assumed}, as a GPU that computes in bfloat16 has it, is assumed."]
    if not spent.is_exact:
        why = "every row is taken for full" if spent.steps is not None else "how many steps an epoch has is not known"
        notes.append(f"The data is not prepared yet: {why}; training once, or debug=fast, prepares it.")
    batch, parts = config["data"]["batch_size"], readers * config["trainer"]["accumulate"]
    if batch is not None and batch < parts:
        notes.append(
            f"data.batch_size={batch} is below the {parts} parts of a step: {parts - batch} of them are empty."
        )
    return notes
