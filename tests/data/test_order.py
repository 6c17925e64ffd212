import pickle
from pathlib import Path

import numpy as np
import pytest

from triform.data.order import (
    Order,
    alike,
    boxes,
    by_length,
    cut,
    epoch_order,
    held_out_batches,
    padding,
    shuffled,
    token_bounds,
)
from triform.data.prepare import Prepared, prepare
from triform.data.sources.pairs import PairFiles
from triform.data.tokenizers import BPE
from triform.tasks.seq2seq import Seq2Seq


def lengths(n: int, columns: int = 2) -> np.ndarray:
    return np.random.default_rng(5).integers(1, 30, size=(n, columns))


@pytest.fixture(scope="module")
def multi30k(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """English and German captions, 29,000 pairs, in pieces of a vocabulary of 4096."""
    place = Path(__file__).parents[3] / "shared" / "data" / "multi30k"
    if not place.is_dir():
        pytest.skip(f"no real data at {place}")
    train, validation = ([str(place / f"{name}.{side}.gz") for side in ("en", "de")] for name in ("train", "val"))
    source = PairFiles(train, validation, None, 0.1, "utf-8", None, None)
    return prepare(source, BPE(4096, lowercase=False), tmp_path_factory.mktemp("multi30k"), progress=False)


def test_epoch_order_is_a_function_of_seed_and_epoch() -> None:
    first = epoch_order(50, seed=3, epoch=0)
    assert sorted(first) == list(range(50))
    np.testing.assert_array_equal(first, epoch_order(50, seed=3, epoch=0))
    assert (first != epoch_order(50, seed=3, epoch=1)).any()
    assert (first != epoch_order(50, seed=4, epoch=0)).any()


@pytest.mark.parametrize("n", [1, 2, 5, 16, 17, 1000])
def test_shuffled_places_are_those_of_one_permutation(n: int) -> None:
    whole = shuffled(np.arange(n), n, seed=3, epoch=1)
    assert sorted(whole) == list(range(n))
    some = np.random.default_rng(0).permutation(n)[: n // 2 + 1]
    np.testing.assert_array_equal(shuffled(some, n, seed=3, epoch=1), whole[some])


def test_shuffled_is_a_function_of_seed_and_epoch_and_like_chance() -> None:
    n = 4099
    first, epoch, seed = (shuffled(np.arange(n), n, *key) for key in ((3, 0), (3, 1), (4, 0)))
    for a, b in ((first, epoch), (first, seed), (first, np.arange(n)), (np.diff(first), np.diff(epoch))):
        # a coefficient of chance has a standard deviation of 1 / sqrt(n), 0.016
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.06
    assert 0 < (first == np.arange(n)).sum() + (first == epoch).sum() < 10  # two are expected


def test_a_batch_far_into_many_examples_is_found_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triform.data.order.MANY", 50)
    order = Order(lengths(53), 8, None, seed=3)
    monkeypatch.setattr(order, "_order_of", None)  # would shuffle all
    read = [order.batch(7 + step) for step in range(7)]
    assert {epoch for epoch, _ in read} == {1}
    assert [len(rows) for _, rows in read] == [8] * 6 + [5]
    assert sorted(np.concatenate([rows for _, rows in read])) == list(range(53))
    monkeypatch.setattr("triform.data.order.MANY", 20)  # tokens are counted in pieces of as many
    n_tokens = 0
    for step in range(10):
        before, n_tokens = n_tokens, n_tokens + int(order.lengths[order.batch(step)[1]].sum())
        assert order.steps_for_tokens(before + 1) == order.steps_for_tokens(n_tokens) == step + 1
        assert order.tokens_in(step + 1) == n_tokens


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (2, 1), (1, 3), (2, 3), (5, 4)])
def test_cut_deals_every_index_once(world: int, accumulate: int) -> None:
    batch = np.arange(13)
    parts = [cut(batch, world, accumulate, rank, micro) for rank in range(world) for micro in range(accumulate)]
    assert sorted(np.concatenate(parts)) == list(range(13))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_cut_leaves_parts_empty_when_examples_run_out() -> None:
    assert [len(cut(np.arange(2), 2, 2, rank, micro)) for rank in range(2) for micro in range(2)] == [1, 0, 1, 0]


@pytest.mark.parametrize(("batch_size", "batch_tokens"), [(8, None), (None, 120)])
class TestOrder:
    def test_each_epoch_reads_everything_once_in_another_order(
        self, batch_size: int | None, batch_tokens: int | None
    ) -> None:
        order = Order(lengths(53), batch_size, batch_tokens, seed=7)
        epochs = []
        for epoch in range(3):
            batches = [order.batch(epoch * order.steps_per_epoch + i) for i in range(order.steps_per_epoch)]
            assert {e for e, _ in batches} == {epoch}
            epochs.append(np.concatenate([indices for _, indices in batches]))
            assert sorted(epochs[-1]) == list(range(53))
        assert (epochs[0] != epochs[1]).any()
        assert (epochs[1] != epochs[2]).any()

    def test_any_step_is_the_same_asked_in_any_order_by_any_copy(
        self, batch_size: int | None, batch_tokens: int | None
    ) -> None:
        order = Order(lengths(53), batch_size, batch_tokens, seed=7)
        forward = [order.batch(step) for step in range(40)]
        other = pickle.loads(pickle.dumps(Order(lengths(53), batch_size, batch_tokens, seed=7)))
        for step in reversed(range(40)):
            epoch, indices = other.batch(step)
            assert epoch == forward[step][0]
            np.testing.assert_array_equal(indices, forward[step][1])

    def test_steps_for_tokens_is_the_first_step_that_reaches_them(
        self, batch_size: int | None, batch_tokens: int | None
    ) -> None:
        sizes = lengths(53)
        order = Order(sizes, batch_size, batch_tokens, seed=7)
        read = 0
        for step in range(2 * order.steps_per_epoch + 3):
            before, read = read, read + int(sizes[order.batch(step)[1]].sum())
            assert order.steps_for_tokens(before + 1) == step + 1
            assert order.steps_for_tokens(read) == step + 1
            assert order.tokens_in(step + 1) == read


def test_batch_size_keeps_the_short_last_batch() -> None:
    order = Order(lengths(53), 8, None, seed=0)
    assert order.steps_per_epoch == 7
    assert [len(order.batch(step)[1]) for step in range(8)] == [8, 8, 8, 8, 8, 8, 5, 8]
    assert order.steps_for(2) == 14
    assert order.steps_for(0.5) == 4


def test_batch_tokens_counts_padding_by_column() -> None:
    sizes = lengths(200)
    order = Order(sizes, None, 150, seed=0)
    padded = [sizes[order.batch(step)[1]] for step in range(order.steps_per_epoch)]
    assert max(len(batch) * batch.max(axis=0).sum() for batch in padded) <= 150
    # Sorted by length, less than a third of what is read is padding; in random order it would be more than half.
    assert sum(len(batch) * batch.max(axis=0).sum() for batch in padded) < 1.5 * sizes.sum()


def test_batch_tokens_does_not_always_batch_the_same_examples() -> None:
    order = Order(np.full((40, 1), 6), None, 30, seed=0)
    first = {frozenset(order.batch(step)[1].tolist()) for step in range(order.steps_per_epoch)}
    second = {frozenset(order.batch(order.steps_per_epoch + step)[1].tolist()) for step in range(order.steps_per_epoch)}
    assert first != second


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 700])
@pytest.mark.parametrize("batch_tokens", [60, 700, 10**6])
def test_token_bounds_are_those_of_one_example_after_the_other(n: int, batch_tokens: int) -> None:
    for rows in (lengths(n), np.sort(lengths(n), axis=0), lengths(n, 1)):
        expected, start = [], 0
        for end in range(1, n):
            if rows[start : end + 1].max(axis=0).sum() * (end + 1 - start) > batch_tokens:
                expected.append(end)
                start = end
        assert token_bounds(rows, batch_tokens) == expected


def test_token_bounds_written_out() -> None:
    # 2 rows of (2+3) padded to (2+3) are 10 tokens; a third would make 3 * 7 of them.
    assert token_bounds(np.array([[1, 3], [2, 3], [4, 3], [4, 9]]), 13) == [2, 3]


def test_alike_written_out() -> None:
    sizes = np.array([[5, 2], [1, 4], [6, 9], [2, 1], [1, 3], [2, 8]])
    # Four batches: two bands, of sources up to 2 and from 5; targets go up in the first and down in the second.
    assert alike(sizes, 4).tolist() == [3, 4, 1, 5, 2, 0]
    assert alike(sizes, 1).tolist() == [3, 0, 4, 1, 5, 2]


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_alike_gives_the_same_lengths_whatever_order_the_examples_come_in(columns: int) -> None:
    sizes = lengths(90, columns)
    expected = sizes[alike(sizes, 9)]
    for epoch in range(5):
        order = epoch_order(90, 0, epoch)
        np.testing.assert_array_equal(sizes[order][alike(sizes[order], 9)], expected)


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_less_than_a_twentieth_of_what_is_read_of_multi30k_is_padding(multi30k: Prepared, family: str) -> None:
    """Counted in the batches themselves, with the marks that the task adds."""
    task = Seq2Seq(
        0.0, "torch", 0.0, "never", family=family, tokenizer=multi30k.tokenizer, labels=None, seq_len=129, seed=0
    )
    train = multi30k.splits["train"]
    order = Order(train.lengths, None, 4096, seed=1)
    real = room = 0
    for step in range(0, order.steps_per_epoch, 4):
        epoch, indices = order.batch(step)
        batch = task.collate([train[i] for i in indices.tolist()], [(epoch, i) for i in indices.tolist()])
        real += batch["n_tokens"]
        room += sum(batch[name].numel() for name in ("input_ids", "decoder_input_ids") if name in batch)
    assert 0.9 < real / (order.steps_per_epoch / 4) / (4096 * 17 / 16) < 1.0, "batches are as large as asked"
    assert 1 - real / room < 0.05


@pytest.mark.parametrize("batch_tokens", [60, 150, 10**6])
def test_boxes_hold_each_example_once_and_no_more_than_asked(batch_tokens: int) -> None:
    rows = lengths(400)
    members, bounds = boxes(rows, batch_tokens)
    assert sorted(members) == list(range(400))
    for batch in np.split(members, bounds):
        assert len(batch) == 1 or rows[batch].max(axis=0).sum() * len(batch) <= batch_tokens
    if batch_tokens == 150:
        line = alike(rows, len(bounds))
        assert padding(rows[members], bounds) < 0.8 * padding(rows[line], token_bounds(rows[line], batch_tokens))


def test_few_large_batches_are_boxes_in_every_epoch(multi30k: Prepared) -> None:
    train = multi30k.splits["train"].lengths
    order = Order(train, None, 8192, seed=1)
    for epoch in (0, 3):
        found = [order.batch(epoch * order.steps_per_epoch + step) for step in range(order.steps_per_epoch)]
        assert {of for of, _ in found} == {epoch}
        assert sorted(np.concatenate([rows for _, rows in found])) == list(range(len(train)))
        room = [int(train[rows].max(axis=0).sum()) * len(rows) for _, rows in found]
        assert max(room) <= 8192
        assert 1 - train.sum() / sum(room) < 0.04
    line = train[alike(train, -(-int(train.sum()) // 8192))]
    assert padding(line, token_bounds(line, 8192)) > 0.06


def test_by_length_sorts_by_source_then_target_and_keeps_ties() -> None:
    assert by_length(np.array([[3, 1], [1, 9], [3, 1], [1, 2]])).tolist() == [3, 1, 0, 2]


@pytest.mark.parametrize(("batch_size", "batch_tokens"), [(9, None), (None, 120)])
def test_held_out_batches_hold_each_example_once(batch_size: int | None, batch_tokens: int | None) -> None:
    batches = held_out_batches(lengths(53), batch_size, batch_tokens, parts=2)
    assert sorted(np.concatenate(batches)) == list(range(53))
    if batch_size is not None:
        assert max(map(len, batches)) == 5


def test_refuses_two_limits_or_none() -> None:
    for size, tokens in ((8, 100), (None, None)):
        with pytest.raises(ValueError, match=r"set one of data\.batch_size and data\.batch_tokens"):
            Order(lengths(5), size, tokens, seed=0)


def test_refuses_a_batch_of_nothing() -> None:
    with pytest.raises(ValueError, match=r"batch_size=0 .*set data\.batch_size to 1 or more"):
        Order(lengths(5), 0, None, seed=0)


def test_refuses_an_example_beyond_the_budget() -> None:
    with pytest.raises(ValueError, match=r"batch_tokens=9 .*longest example, 10 tokens; raise data\.batch_tokens"):
        Order(np.array([[4, 6], [1, 1]]), None, 9, seed=0)


def packed(batch_size: int | None = 3, batch_tokens: int | None = None) -> tuple[Order, np.ndarray]:
    sizes = lengths(53, 1)
    return Order(sizes, batch_size, batch_tokens, 7, row_lengths=sizes[:, 0] + 2, row_length=40), sizes[:, 0] + 2


@pytest.mark.parametrize("limits", [(3, None), (None, 135)])
def test_packed_epochs_read_everything_once_in_rows_that_hold_it(limits: tuple[int | None, int | None]) -> None:
    order, sizes = packed(*limits)
    epochs = []
    for epoch in range(3):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        batches = [order.rows(step) for step in steps]
        assert {e for e, _ in batches} == {epoch}
        assert [len(rows) for _, rows in batches[:-1]] == [3] * (order.steps_per_epoch - 1)
        rows = [row for _, batch in batches for row in batch]
        assert len(rows) == order.n_rows
        assert max(sizes[row].sum() for row in rows) <= 40
        epochs.append(np.concatenate(rows))
        assert sorted(epochs[-1]) == list(range(53))
        for step, (_, batch) in zip(steps, batches, strict=True):
            np.testing.assert_array_equal(order.batch(step)[1], np.concatenate(list(batch)))
    assert (epochs[0] != epochs[1]).any()
    read = 0
    for step in range(order.steps_per_epoch + 2):
        before, read = read, read + int(order.lengths[order.batch(step)[1]].sum())
        assert order.steps_for_tokens(before + 1) == order.steps_for_tokens(read) == step + 1
        assert order.tokens_in(step + 1) == read


def test_packed_rows_are_dealt_whole_and_the_same_to_any_copy() -> None:
    order, other = packed()[0], pickle.loads(pickle.dumps(packed()[0]))
    for step in (5, 0, 11, 4):
        rows = order.rows(step)[1]
        assert [row.tolist() for row in rows] == [row.tolist() for row in other.rows(step)[1]]
        dealt = [cut(rows, 2, 2, rank, micro) for rank in range(2) for micro in range(2)]
        assert sorted(row.tolist() for part in dealt for row in part) == sorted(row.tolist() for row in rows)


def test_refuses_a_packed_row_beyond_the_budget() -> None:
    with pytest.raises(ValueError, match=r"batch_tokens=39 .*packed row, 40 tokens; raise data\.batch_tokens to 40"):
        packed(None, 39)
