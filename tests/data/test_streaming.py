"""Batches of a stream: the same for any number of workers, ranks and beginnings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.test_module import at, collate, join, row_lengths
from triform.data.corpus import BEGINNING
from triform.data.module import DataModule
from triform.data.packing import Packing
from triform.data.prepare import Prepared, prepare
from triform.data.rows import Documents
from triform.data.sources.streamed import Streamed
from triform.data.sources.text import TextFiles
from triform.data.streaming import StreamOrder, tokenised
from triform.data.tokenizers import Byte

PACKED = {"packing": Packing(9, row_lengths, join), "seq_len": 9, "batch_size": 3}
STEPS = 60  # more than an epoch
Made = Callable[..., DataModule]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    (tmp_path / "a.txt").write_text("".join(f"{'abcdefg'[: 1 + i % 7]} {i}\n" for i in range(150)))
    (tmp_path / "b.jsonl").write_text("".join(f'{{"text": "{i} row"}}\n' for i in range(40)))
    source = Streamed(TextFiles([f"{tmp_path}/a.txt", f"{tmp_path}/b.jsonl"], None, None, 0.1, "utf-8", None), 1e-4)
    prepared = prepare(source, Byte(), tmp_path / "cache", progress=False)

    def make(**changes: Any) -> DataModule:
        settings = {"seq_len": 8, "batch_size": 5, "batch_tokens": None, "num_workers": 0, "seed": 11, "accumulate": 1}
        data = DataModule(prepared, collate, corpus=source.corpus(300, 11), **settings | changes)
        data.total_steps = STEPS
        return data

    return make


def spelt(prepared: Prepared, ids: list[list[int]]) -> str:
    return "".join(prepared.tokenizer.decode(row) for row in ids)


@pytest.mark.parametrize("changes", [{}, PACKED])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_change_nothing(made: Made, changes: dict[str, Any], workers: int) -> None:
    if workers == 3:
        changes = changes | {"accumulate": 2}
    alone = list(made(**changes).train_dataloader())
    assert len(alone) == STEPS * changes.get("accumulate", 1)
    assert list(made(**changes, num_workers=workers).train_dataloader()) == alone


def test_windows_without_a_row_are_not_kept_in_mind(tmp_path: Path) -> None:
    """A batch is fetched ahead: what a checkpoint needs of the step before must be known behind many of them."""
    rows = [json.dumps({"text": f"some text, {i}" if i % 90 == 5 else "", "note": 280 * "x"}) for i in range(400)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "b.txt").write_text("some other text to be validated on")
    source = Streamed(TextFiles([f"{tmp_path}/a.jsonl"], [f"{tmp_path}/b.txt"], None, 0.1, "utf-8", None), 1e-4)
    prepared = prepare(source, Byte(), tmp_path / "cache", progress=False)
    data = at(DataModule(prepared, collate, 4, 5, None, 0, 11, 1, corpus=source.corpus(300, 11)))
    data.total_steps = 12
    stream = iter(data.train_dataloader())
    next(stream)
    for step in range(11):
        next(stream)
        data.trainer.global_step = step
        assert data.state_dict()["mark"][0] <= step
    with pytest.raises(ValueError, match=r"Streaming: step -1 lies more than \d+ windows .*; set data\.num_workers=0"):
        data.training.state(-1)


@pytest.mark.parametrize("changes", [{}, PACKED])
def test_goes_on_at_any_step_from_what_a_checkpoint_holds(made: Made, changes: dict[str, Any]) -> None:
    """Also where one more batch has been fetched than used."""
    whole = list(made(**changes, accumulate=2).train_dataloader())
    data = at(made(**changes, accumulate=2))
    stream = iter(data.train_dataloader())
    states = []
    for step in range(STEPS):
        data.trainer.global_step = step
        if step % 2:
            states.append(data.state_dict())
        next(stream)
        if not step % 2:
            states.append(data.state_dict())
        next(stream)
    for step in range(0, STEPS, 7):
        again = at(made(**changes, accumulate=2), global_step=step)
        again.load_state_dict(states[step])
        loader = again.train_dataloader()
        assert len(loader) == 2 * STEPS  # counted from the first step
        assert list(loader) == whole[2 * step :]
        assert again.state_dict()["mark"][0] <= step
    assert len({tuple(state["mark"]) for state in states}) > 5


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (1, 2), (2, 2), (3, 4)])
@pytest.mark.parametrize("changes", [{}, PACKED])
def test_devices_and_accumulation_only_cut_the_batch(
    made: Made, world: int, accumulate: int, changes: dict[str, Any]
) -> None:
    whole = [
        sorted(zip(b["keys"], map(str, b.get("ids", b["keys"])), strict=True))
        for b in made(**changes).train_dataloader()
    ]
    parts: list[list[Any]] = [[] for _ in whole]
    for rank in range(world):
        data = at(made(**changes, accumulate=accumulate), world_size=world, global_rank=rank)
        for k, b in enumerate(data.train_dataloader()):
            parts[k // accumulate] += zip(b["keys"], map(str, b.get("ids", b["keys"])), strict=True)
    assert [sorted(part) for part in parts] == whole


def test_an_epoch_predicts_every_token_but_the_first_of_a_window(made: Made) -> None:
    data = made()
    corpus, tokenizer = data.training.reader.corpus, data.prepared.tokenizer
    windows, n_bytes = 0, 0
    for window in corpus.windows(BEGINNING):
        if window.position.epoch:
            break
        windows += 1
        n_bytes += sum(len(p.text.encode()) + p.is_end for p in window.read())
    found = [(key, ids) for b in data.train_dataloader() for key, ids in zip(b["keys"], b["ids"], strict=True)]
    first = {key: ids for key, ids in found if key[0] == 0}
    assert len([key for key, _ in found if key[0] == 0]) == len(first)
    assert sum(len(ids) - 1 for ids in first.values()) == n_bytes - windows
    assert {key[0] for key, _ in found} >= {0, 1}
    second = [ids for key, ids in found if key[0] == 1]
    assert [ids for key, ids in found if key[0] == 0][: len(second)] != second
    assert tokenizer.eos_id in {i for ids in first.values() for i in ids}


def test_steps_have_the_rows_asked_for_or_few_less(made: Made) -> None:
    counts = [len(b["keys"]) for b in made().train_dataloader()]
    assert max(counts) == 5
    assert min(counts) >= 4
    tokens = [len(b["keys"]) for b in made(batch_size=None, batch_tokens=31).train_dataloader()]
    assert max(tokens) == 3
    rows = [len(b["rows"]) for b in made(**PACKED).train_dataloader()]
    assert max(rows) == 3


def test_a_packed_document_begins_with_an_end_mark(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"text": "long " * (i % 5) + str(i)}) + "\n" for i in range(40))
    )
    source = Streamed(TextFiles(f"{tmp_path}/x.jsonl", None, None, 0.1, "utf-8", None), 1e-4)
    tokenizer = prepare(source, Byte(), tmp_path / "cache", progress=False).tokenizer
    tokens = tokenised(next(source.corpus(300, 1).windows(BEGINNING)), tokenizer)
    ids = [example["ids"].tolist() for example in Documents(tokens, 9, opening=tokenizer.eos_id)]
    openings = [example["opening"] for example in Documents(tokens, 9, opening=tokenizer.eos_id)]
    assert len(ids) > len(tokens.document_ends)  # some are cut
    before = [tokenizer.eos_id, *(row[-1] for row in ids[:-1])]
    assert openings == before


def test_what_a_stream_cannot_say_is_refused(made: Made) -> None:
    order = made().order
    assert isinstance(order, StreamOrder)
    assert order.steps_for_tokens(401) == 11
    assert order.tokens_in(3) == 120
    assert 20 < order.steps_per_epoch < 60
    with pytest.raises(ValueError, match=r"trainer\.max_epochs=2 ends no stream, .*set trainer\.max_steps"):
        order.steps_for(2)
    with pytest.raises(ValueError, match=r"batch_tokens=7 is less than a row, 8 tokens; raise data\.batch_tokens to 8"):
        made(batch_size=None, batch_tokens=7)
