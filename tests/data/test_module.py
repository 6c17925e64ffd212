import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from triform.data.module import DataModule
from triform.data.packing import Packing
from triform.data.prepare import Prepared

WORDS = [f"{'abcdefghij'[i % 10] * (1 + i % 7)}" for i in range(23)]


def collate(examples: list[dict[str, Any]], keys: list[tuple[int, int]]) -> dict[str, Any]:
    """Keeps what it is given, with a number drawn from each key as a task's noise would be."""
    noise = [torch.rand(1, generator=torch.Generator().manual_seed(97 * e + i)).item() for e, i in keys]
    return {"keys": keys, "ids": [list(map(int, next(iter(x.values())))) for x in examples], "noise": noise}


def make(prepared: Prepared, seq_len: int = 4, **changes: Any) -> DataModule:
    settings = {"batch_size": 6, "batch_tokens": None, "num_workers": 0, "seed": 11, "accumulate": 1, **changes}
    data = DataModule(prepared, collate, seq_len=seq_len, **settings)
    data.total_steps = 9
    return data


class Place:
    """The part of a Trainer that a DataModule reads."""

    def __init__(self, world_size: int = 1, global_rank: int = 0, global_step: int = 0) -> None:
        self.distributed_sampler_kwargs = {"num_replicas": world_size, "rank": global_rank}
        self.global_step = global_step


def at(data: DataModule, **place: int) -> DataModule:
    data.trainer = Place(**place)  # type: ignore[assignment]
    return data


@pytest.fixture
def words(pairs: Callable[..., Prepared]) -> Prepared:
    return pairs([(word, "x") for word in WORDS], [(word, "x") for word in WORDS[:5]])


@pytest.fixture
def running(text: Callable[..., Prepared]) -> Prepared:
    return text(["abcdefghij" * 9, "bcd"], ["abcabcabcab"])


def row_lengths(lengths: np.ndarray) -> np.ndarray:
    return lengths[:, 0]


def join(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Keeps what is in each row, and all keys."""
    return {"rows": batches, "keys": [key for batch in batches for key in batch["keys"]]}


PACKED = {"packing": Packing(9, row_lengths, join), "seq_len": 9, "batch_size": 4}


@pytest.mark.parametrize("changes", [{}, PACKED])
@pytest.mark.parametrize("source", ["words", "running"])
def test_workers_change_nothing(source: str, changes: dict[str, Any], request: pytest.FixtureRequest) -> None:
    prepared = request.getfixturevalue(source)
    alone = list(make(prepared, accumulate=2, **changes).train_dataloader())
    helped = list(make(prepared, accumulate=2, num_workers=2, **changes).train_dataloader())
    assert alone == helped
    assert len(alone) == 18


@pytest.mark.parametrize("changes", [{}, PACKED])
@pytest.mark.parametrize("source", ["words", "running"])
def test_starts_at_any_step_with_what_comes_there(
    source: str, changes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    prepared = request.getfixturevalue(source)
    whole = list(make(prepared, accumulate=2, **changes).train_dataloader())
    for step in range(10):
        loader = at(make(prepared, accumulate=2, **changes), global_step=step).train_dataloader()
        assert list(loader) == whole[2 * step :]
        assert len(loader) == 18  # counted from the first step


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (1, 2), (2, 2), (3, 4)])
@pytest.mark.parametrize("changes", [{}, PACKED])
@pytest.mark.parametrize("source", ["words", "running"])
def test_devices_and_accumulation_only_cut_the_batch(
    source: str, world: int, accumulate: int, changes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    prepared = request.getfixturevalue(source)
    whole = [set(batch["keys"]) for batch in make(prepared, **changes).train_dataloader()]
    parts: list[list[tuple[int, int]]] = [[] for _ in whole]
    for rank in range(world):
        data = at(make(prepared, accumulate=accumulate, **changes), world_size=world, global_rank=rank)
        for k, batch in enumerate(data.train_dataloader()):
            parts[k // accumulate] += batch["keys"]
    assert [set(part) for part in parts] == whole
    assert [len(part) for part in parts] == [len(batch) for batch in whole]


def test_packed_text_is_read_by_whole_documents(text: Callable[..., Prepared]) -> None:
    prepared = text(["abcdefghi", "ab", "abcd", "abc", "a"], ["abc"])
    data = make(prepared, **PACKED | {"batch_size": 9})
    (batch, *_) = data.train_dataloader()
    rows = sorted(sorted(len(ids) for ids in row["ids"]) for row in batch["rows"])
    assert data.order.steps_per_epoch == 1
    assert rows == [[1, 2, 3], [4, 5], [9]]  # a document of 10 tokens is cut


def test_packing_leaves_held_out_text_as_it_is(running: Prepared) -> None:
    assert list(make(running, **PACKED).val_dataloader()) == list(make(running, seq_len=9).val_dataloader())


def test_each_epoch_reads_each_example_once_with_other_noise(words: Prepared) -> None:
    batches = list(make(words).train_dataloader())  # 4 steps an epoch
    first, second = batches[:4], batches[4:8]
    for epoch, part in enumerate((first, second)):
        assert sorted(key for batch in part for key in batch["keys"]) == [(epoch, i) for i in range(23)]
    assert [b["keys"][0][1] for b in first] != [b["keys"][0][1] for b in second]
    assert len({n for b in batches[:8] for n in b["noise"]}) == 46


def test_validation_does_not_change_training(words: Prepared) -> None:
    data = make(words)
    expected = list(make(words).train_dataloader())
    stream = iter(data.train_dataloader())
    mixed = []
    for _ in range(9):
        list(data.val_dataloader())
        mixed.append(next(stream))
    assert mixed == expected


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("limits", [(6, None), (None, 40)])
def test_held_out_examples_go_to_one_rank_once(
    words: Prepared, world: int, split: str, limits: tuple[int | None, int | None]
) -> None:
    found = []
    for rank in range(world):
        data = at(make(words, batch_size=limits[0], batch_tokens=limits[1]), world_size=world, global_rank=rank)
        batches = list(data.loader(split))
        assert len(batches) == len(data.loader(split)) >= 1  # a rank without examples still takes part
        found += [key for batch in batches for key in batch["keys"]]
    assert sorted(found) == [(-1, i) for i in range(len(words.splits[split]))]


def test_held_out_examples_come_by_length_the_same_each_time(words: Prepared) -> None:
    data = make(words)
    lengths = [len(ids) for batch in data.val_dataloader() for ids in batch["ids"]]
    assert lengths == sorted(lengths)
    assert list(data.val_dataloader()) == list(data.val_dataloader())


def test_held_out_text_predicts_each_token_once(running: Prepared) -> None:
    data = make(running)
    rows = [ids for batch in data.val_dataloader() for ids in batch["ids"]]
    tokens = running.splits["validation"].tokens.tolist()
    assert sorted(i for row in rows for i in row[1:]) == sorted(tokens[1:])
    assert {len(row) for row in rows} == {5, 4}


def test_training_text_is_cut_elsewhere_in_each_epoch(running: Prepared) -> None:
    data = make(running, batch_size=25)  # an epoch is one step
    assert data.order.steps_per_epoch == 1
    first_tokens = [tuple(sorted(map(tuple, batch["ids"]))) for batch in data.train_dataloader()]
    assert len(set(first_tokens)) > 1


def test_overfitting_reads_the_first_batch_in_every_step(words: Prepared) -> None:
    first = next(iter(make(words).train_dataloader()))
    assert list(make(words, overfit=True).train_dataloader()) == [first] * 9


def test_refuses_text_shorter_than_a_row(running: Prepared) -> None:
    with pytest.raises(ValueError, match=r"split train has 95 tokens, fewer than the 101 .*data\.seq_len=100"):
        make(running, seq_len=100)


def test_refuses_an_unknown_split(words: Prepared) -> None:
    with pytest.raises(ValueError, match=r"no split 'test', only train, validation; give data\.test_files"):
        make(words).test_dataloader()


class Recorder(pl.LightningModule):
    """Trains nothing; keeps the keys it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[tuple[int, int]]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        self.seen.append(batch["keys"])
        return self.weight.sum()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data: DataModule, module: Recorder, tmp_path: Any, steps: int, sanity: int, checkpoint: Any = None) -> Any:
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=steps,
        accumulate_grad_batches=data.accumulate,
        num_sanity_val_steps=sanity,
        val_check_interval=4,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, data, ckpt_path=checkpoint)
    return trainer


@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # Lightning's, by torch
@pytest.mark.filterwarnings("ignore:.*your dataloader is not resumable:UserWarning")  # it needs no state to be
def test_lightning_reads_the_stream_whole_resumed_and_past_sanity_checks(words: Prepared, tmp_path: Any) -> None:
    whole, checked, cut_short, resumed = Recorder(), Recorder(), Recorder(), Recorder()
    fit(make(words, accumulate=2), whole, tmp_path, 9, sanity=0)
    assert whole.seen == [batch["keys"] for batch in make(words, accumulate=2).train_dataloader()]
    fit(make(words, accumulate=2), checked, tmp_path, 9, sanity=2)
    assert checked.seen == whole.seen
    trainer = fit(make(words, accumulate=2), cut_short, tmp_path, 5, sanity=0)
    trainer.save_checkpoint(tmp_path / "at5.ckpt")
    fit(make(words, accumulate=2), resumed, tmp_path, 9, sanity=0, checkpoint=tmp_path / "at5.ckpt")
    assert cut_short.seen + resumed.seen == whole.seen


def test_workers_start_from_a_forkserver(words: Prepared) -> None:
    loader = make(words, num_workers=2).train_dataloader()
    assert isinstance(loader, DataLoader)
    assert loader.persistent_workers
    assert loader.multiprocessing_context.get_start_method() == "forkserver"


def _pids(examples: list[dict[str, Any]], keys: list[tuple[int, int]]) -> dict[str, Any]:
    return {"pid": os.getpid()}


def _read_on(prepared: Prepared, pids: Any) -> None:
    data = DataModule(
        prepared, _pids, seq_len=4, batch_size=6, batch_tokens=None, num_workers=2, seed=1, accumulate=1, overfit=True
    )
    data.total_steps = 10**6
    for batch in at(data).train_dataloader():
        pids.send(batch["pid"])


@pytest.mark.slow
def test_workers_end_with_a_reader_that_is_killed(words: Prepared) -> None:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    reader = context.Process(target=_read_on, args=(words, theirs))
    reader.start()
    pids = {ours.recv() for _ in range(8)}
    assert len(pids) == 2
    assert reader.pid not in pids
    reader.kill()
    reader.join()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
