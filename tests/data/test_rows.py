from collections.abc import Callable

import numpy as np
import pytest

from triform.data.prepare import Prepared
from triform.data.rows import Documents, TextRows, training_rows


def test_rows_written_out(text: Callable[..., Prepared]) -> None:
    prepared = text(["abcdefg", "hi"], ["x"])
    rows = TextRows(prepared.splits["train"], seq_len=4, offset=0)
    assert len(rows) == 3
    read = ["".join(prepared.tokenizer.pieces(rows[i]["ids"])) for i in range(3)]
    assert read == ["abcde", "efg[EOS]h", "hi[EOS]"]  # consecutive rows share a token
    assert "documents" not in rows[0]
    assert rows[1]["documents"].tolist() == [0, 0, 0, 0, 1]
    assert "documents" not in rows[2]


def test_offset_skips_tokens(text: Callable[..., Prepared]) -> None:
    split = text(["abcdefghij"], ["x"]).splits["train"]
    assert TextRows(split, 4, offset=3)[0]["ids"].tolist() == split.tokens[3:8].tolist()


@pytest.mark.parametrize("length", range(2, 14))
def test_every_token_after_the_first_is_predicted_once(text: Callable[..., Prepared], length: int) -> None:
    split = text(["a"], ["abcdefghijklmnop"[: length - 1]]).splits["validation"]
    rows = TextRows(split, seq_len=4, offset=0)
    predicted = np.concatenate([rows[i]["ids"][1:] for i in range(len(rows))])
    np.testing.assert_array_equal(predicted, split.tokens[1:])
    assert all(len(rows[i]["ids"]) >= 2 for i in range(len(rows)))


@pytest.mark.parametrize("length", [5, 6, 9, 10, 33, 40, 41])
def test_training_rows_are_whole_and_equally_many_in_each_epoch(text: Callable[..., Prepared], length: int) -> None:
    split = text([("abcdefgh" * 6)[: length - 1]], ["x"]).splits["train"]
    epochs = [training_rows(split, seq_len=4, seed=1, epoch=epoch) for epoch in range(40)]
    assert len({len(rows) for rows in epochs}) == 1
    assert {len(rows[i]["ids"]) for rows in epochs for i in range(len(rows))} == {5}
    starts = {rows.offset for rows in epochs}
    assert starts == set(range(min(4, length - 4 * len(epochs[0]))))  # every offset that fits occurs
    assert [rows.offset for rows in epochs] == [training_rows(split, 4, 1, epoch).offset for epoch in range(40)]
    ends = max(rows.offset + 4 * len(rows) + 1 for rows in epochs)
    assert length - ends < 8


def test_documents_written_out(text: Callable[..., Prepared]) -> None:
    prepared = text(["abcdefg", "hi", "jklm"], ["x"])
    documents = Documents(prepared.splits["train"], seq_len=5)
    assert documents.lengths.tolist() == [5, 3, 3, 5]
    pieces = prepared.tokenizer.pieces
    read = [
        ("".join(pieces(documents[i]["ids"])), "".join(pieces([documents[i]["opening"]])))
        for i in range(len(documents))
    ]
    assert read == [("abcde", "[EOS]"), ("fg[EOS]", "e"), ("hi[EOS]", "[EOS]"), ("jklm[EOS]", "[EOS]")]
