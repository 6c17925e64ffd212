"""Tiny real runs for tests: each in a fresh process from a warm server, so that it can be killed."""

import csv
import inspect
import json
import multiprocessing
import os
import signal
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from triform.run.compose import compose
from triform.run.folder import RunFolder
from triform.run.job import checked, created, rank_main, settled
from triform.run.ranks import launch
from triform.training.saving import read_checkpoint

PRELOAD = ["torch", "lightning.pytorch", "triform.training.fit", "triform.run.parts", "tests.training.runs"]
TIMES = ("seconds", "train/tokens_per_second", "train/mfu")
FAMILIES = {
    "encoder": ("masked_lm", "text"),
    "decoder": ("causal_lm", "text"),
    "encoder_decoder": ("seq2seq", "pairs"),
}
SIZES = ["model.d_model=24", "model.n_layers=2", "model.n_heads=2", "model.d_ff=36", "model.max_seq_len=40"]


def make(folder: Path, family: str, *overrides: str) -> RunFolder:
    """A run that has not started: two layers, dropout, two micro-batches a step, 12 steps in more than one epoch."""
    task, kind = FAMILIES[family]
    kind = "mixture" if any("data.sources" in word for word in overrides) else kind
    source = folder / "source.txt"
    if kind == "text":
        source.write_text(inspect.getsource(textwrap)[:6000])
        files = f"data.train_files={source}"
    elif kind == "mixture":
        files = "data.num_workers=0"
    else:
        lines = [line.split() for line in inspect.getsource(textwrap).splitlines() if len(line.split()) > 1][:120]
        source.with_suffix(".a").write_text("".join(" ".join(words) + "\n" for words in lines))
        source.with_suffix(".b").write_text("".join(" ".join(reversed(words)) + "\n" for words in lines))
        files = f"data.train_files=[{source.with_suffix('.a')},{source.with_suffix('.b')}]"
    config = settled(
        compose(
            [
                *(f"model={family}", f"task={task}", f"data={kind}", files, "tokenizer=char", "logger=csv"),
                *("data.seq_len=32", "data.batch_size=18", "model.dropout=0.1", *SIZES),
                *("trainer.max_steps=12", "trainer.max_epochs=null", "trainer.val_interval=5"),
                *("trainer.save_interval=3", "trainer.log_interval=2", "trainer.accumulate=2"),
                *("scheduler=cosine", "scheduler.warmup_steps=4", "optimizer.lr=0.01"),
                f"paths.outputs={folder / 'outputs'}",
                *overrides,
            ]
        )
    )
    return created(config, [], checked(config))


def documents(folder: Path) -> str:
    """Override for many short documents in place of one long text."""
    paragraphs = [part for part in inspect.getsource(textwrap)[:6000].split("\n\n") if part.strip()]
    file = folder / "documents.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in paragraphs))
    return f"data.train_files={file}"


def mixture(folder: Path) -> list[str]:
    """Overrides for two sources, the shorter one read three times as often as the other."""
    other = folder / "other.txt"
    other.write_text(inspect.getsource(textwrap)[-1500:])
    words = [f"+data@data.sources.{name}=text" for name in ("many", "few")]
    words += [documents(folder).replace("data.", "data.sources.many."), f"data.sources.few.train_files={other}"]
    return [*words, "+data.weights={many: 1, few: 3}"]


def run(folder: RunFolder, resume: bool = False, kill_at: Mapping[str, int] | None = None) -> int:
    """Train in a process of its own and return its exit code; negative: it was killed by that signal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=_child, args=(folder, resume, dict(kill_at or {})))
    process.start()
    process.join(240)
    assert process.exitcode is not None
    return process.exitcode


def _child(folder: RunFolder, resume: bool, kill_at: dict[str, int]) -> None:
    devices = folder.read_config()["trainer"]["devices"]
    if devices == 1:
        raise SystemExit(_rank(folder, resume, kill_at))
    raise SystemExit(launch(devices, _rank, (folder, resume, kill_at)))


def _rank(folder: RunFolder, resume: bool, kill_at: dict[str, int]) -> int:
    torch.set_num_threads(1)
    for place, count in kill_at.items():
        _signal_at(place, count)
    return rank_main(folder, resume)


def _signal_at(place: str, count: int) -> None:
    """Send this process a signal at the `count`th call of a function: SIGKILL, or another one by "TERM:place"."""
    from triform.tasks.task import Task
    from triform.training import saving

    kind, _, place = place.rpartition(":")
    number = signal.Signals[f"SIG{kind or 'KILL'}"]
    owner, name = {
        "micro-batch": (Task, "training_step"),
        "update": (Task, "on_before_optimizer_step"),
        "validation": (Task, "validation_step"),
        "save": (saving.AtomicCheckpointIO, "save_checkpoint"),
        "link": (saving, "link"),
        "write": (os, "fsync"),
        "rename": (os, "replace"),
    }[place]
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def outcome(folder: RunFolder) -> dict[str, Any]:
    """All of a run's end that does not tell the time: weights, optimizer, schedule, best, and every logged value."""
    checkpoint = read_checkpoint(folder.checkpoints / "last.ckpt")
    best = read_checkpoint(folder.checkpoints / "best.ckpt")
    with folder.metrics.open(newline="") as file:
        rows = [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]
    return {
        "weights": checkpoint["state_dict"],
        "optimizer": checkpoint["optimizer_states"],
        "schedule": checkpoint["lr_schedulers"],
        "callbacks": checkpoint["callbacks"],
        "average": checkpoint.get("average"),
        "step": checkpoint["progress"]["step"],
        "tokens": checkpoint["progress"]["tokens"],
        "best": best["state_dict"],
        "rows": rows,
    }


def differences(a: Any, b: Any, place: str = "") -> list[str]:
    """Where two nested outcomes are not bitwise equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = list({**a, **b})
        return [d for key in keys for d in differences(a.get(key), b.get(key), f"{place}.{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{place}[{i}]")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if torch.equal(a, b) else [f"{place}: differ by {(a - b).abs().max()}"]
    return [] if a == b else [f"{place}: {a!r} and {b!r}"]


def gradients(folder: RunFolder, devices: int) -> list[dict[str, torch.Tensor]]:
    """Train on `devices` ranks as the runner does, without clipping; the gradient that each optimizer step is given."""
    assert launch(devices, _rank_that_keeps_gradients, (folder,)) == 0
    return torch.load(folder.path / "gradients.pt", weights_only=True)


def _rank_that_keeps_gradients(folder: RunFolder) -> int:
    from triform.tasks.task import Task
    from triform.training.hardware import rank

    torch.set_num_threads(1)
    os.cpu_count = lambda: int(os.environ["WORLD_SIZE"])  # more ranks than cores are slow, nothing else
    kept: list[dict[str, torch.Tensor]] = []
    original = Task.configure_gradient_clipping

    def keep(self: Task, *args: Any, **kwargs: Any) -> None:
        self.gradient_clip = None
        original(self, *args, **kwargs)
        found = [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        kept.append({f"model.{name}": self.layout.whole(name, gradient).clone() for name, gradient in found})

    Task.configure_gradient_clipping = keep  # type: ignore[method-assign]
    code = rank_main(folder, False)
    if rank() == 0:
        torch.save(kept, folder.path / "gradients.pt")
    return code
