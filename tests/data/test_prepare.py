import hashlib
import multiprocessing
import os
import pickle
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from triform.data import prepare as module
from triform.data import tokenise
from triform.data.prepare import Origin, Prepared, origin, prepare
from triform.data.sources.dates import Dates
from triform.data.sources.files import content_hash
from triform.data.sources.labelled import LabelledFiles
from triform.data.sources.text import TextFiles
from triform.data.tokenise import Piece, cut
from triform.data.tokenizers import BPE, Byte, Char, Tokenizer


def folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def test_text_is_documents_that_end(text: Callable[..., Prepared]) -> None:
    prepared = text(["abc", "é"], ["ca"])
    split, tokenizer = prepared.splits["train"], prepared.tokenizer
    assert split.tokens.tolist() == [*tokenizer.encode("abc"), 3, *tokenizer.encode("é"), 3]
    assert split.document_ends.tolist() == [4, 6]
    assert split.n_bytes == 5
    assert split.texts(1) == {"text": "é"}
    assert prepared.splits["validation"].tokens.tolist() == [*tokenizer.encode("ca"), 3]


def test_pairs(pairs: Callable[..., Prepared]) -> None:
    prepared = pairs([("ab", "x"), ("c", "yz")], [("b", "zzz")])
    split, tokenizer = prepared.splits["train"], prepared.tokenizer
    assert len(split) == 2
    assert split[0]["source_ids"].tolist() == tokenizer.encode("ab")
    assert split[0]["target_ids"].tolist() == tokenizer.encode("x")
    assert split.lengths.tolist() == [[2, 1], [1, 2]]
    assert split.texts(1) == {"source": "c", "target": "yz"}


def test_labelled_numbers_labels_in_order(labelled: Callable[..., Prepared]) -> None:
    prepared = labelled([("good", "10"), ("bad", "2"), ("fine", "10")], [("dog", "2")])
    assert prepared.labels == ["2", "10"]
    assert [prepared.splits["train"][i]["label"] for i in range(3)] == [1, 0, 1]
    assert prepared.splits["validation"][0]["label"] == 0
    assert prepared.tokenizer.decode(prepared.splits["train"][1]["ids"]) == "bad"


def test_tokenizer_is_trained_on_the_training_split_alone(pairs: Callable[..., Prepared]) -> None:
    prepared = pairs([("a", "b")], [("z", "b")])
    assert prepared.splits["validation"][0]["source_ids"].tolist() == [prepared.tokenizer.unk_id]


def test_second_call_only_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(Dates(9, 2, 2, 0), Char(), tmp_path, progress=False)
    monkeypatch.setattr(module, "_make", None)
    again = prepare(Dates(9, 2, 2, 0), Char(), tmp_path, progress=False)
    assert again.folder == first.folder
    np.testing.assert_array_equal(again.splits["train"].lengths, first.splits["train"].lengths)


def test_other_content_or_recipe_is_other_data(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    source = TextFiles(str(path), None, None, 0.5, "utf-8", None)
    path.write_text("some text")
    one = prepare(source, Byte(), tmp_path / "cache", progress=False).folder
    path.write_text("some test")
    two = prepare(source, Byte(), tmp_path / "cache", progress=False).folder
    three = prepare(source, BPE(300, lowercase=False), tmp_path / "cache", progress=False).folder
    four = prepare(source, BPE(301, lowercase=False), tmp_path / "cache", progress=False).folder
    assert len({one, two, three, four}) == 4


def test_pickles_as_paths(tmp_path: Path) -> None:
    prepared = prepare(Dates(300, 2, 2, 0), Char(), tmp_path, progress=False)
    assert len(prepared.splits["train"].lengths) == 300  # opens the maps
    assert len(pickle.dumps(prepared)) < 1000
    assert len(pickle.dumps(prepared.splits["train"])) < 2000
    copy = pickle.loads(pickle.dumps(prepared.splits["train"]))
    np.testing.assert_array_equal(copy[7]["source_ids"], prepared.splits["train"][7]["source_ids"])


def test_a_fault_leaves_nothing(tmp_path: Path) -> None:
    path, cache = tmp_path / "x.tsv", tmp_path / "cache"
    path.write_bytes(b"good\t1\n" * 100_000 + b"b\xe9d\t0\n")
    source = LabelledFiles(str(path), None, None, 0.5, "utf-8", None, None)
    source.check()
    with pytest.raises(ValueError, match="line 100001 is not UTF-8"):
        prepare(source, Char(), cache, progress=False)
    assert folders(cache) == []


def test_what_a_killed_process_left_is_swept_up(tmp_path: Path) -> None:
    folder = prepare(Dates(9, 2, 2, 0), Char(), tmp_path, progress=False).folder
    folder.rename(tmp_path / f"{folder.name}.abc.tmp")
    assert prepare(Dates(9, 2, 2, 0), Char(), tmp_path, progress=False).folder == folder
    assert folders(tmp_path) == [folder]


def test_refuses_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ValueError, match=r"file/cache cannot be written \(.*\); set paths\.cache"):
        prepare(Dates(9, 2, 2, 0), Char(), tmp_path / "file" / "cache", progress=False)


def test_refuses_a_label_that_training_has_not(labelled: Callable[..., Prepared]) -> None:
    with pytest.raises(ValueError, match=r"'c' of the split validation \(.*validation\.tsv, line 1\) .*has a, b; mend"):
        labelled([("x", "a"), ("y", "b")], [("z", "c")])


def test_refuses_an_empty_split(tmp_path: Path) -> None:
    path = tmp_path / "one.tsv"
    path.write_text("only\t1\n")
    with pytest.raises(ValueError, match=r"1 training example.*none can be held out .*; name data\.validation_files"):
        prepare(
            LabelledFiles(str(path), None, None, 0.5, "utf-8", None, None), Char(), tmp_path / "cache", progress=False
        )


def test_open_refuses_another_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no prepared data"):
        Prepared.open(tmp_path)


def _prepare_dates(cache: Path, results: "multiprocessing.SimpleQueue[str]") -> None:
    results.put(str(prepare(Dates(50, 2, 2, 0), Char(), cache, progress=False).folder))


def test_processes_that_ask_together_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    results = context.SimpleQueue()
    processes = [context.Process(target=_prepare_dates, args=(tmp_path, results)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert results.get() == results.get() == str(folders(tmp_path)[0])
    assert len(folders(tmp_path)) == 1


def pieces(tmp_path: Path, rows: list[str], size: int) -> list[Piece]:
    data = [row.encode() for row in rows]
    (tmp_path / "x.utf8").write_bytes(b"".join(data))
    np.cumsum([len(row) for row in data]).astype(np.int64).tofile(tmp_path / "x.utf8_ends")
    return list(cut(tmp_path / "x.utf8", size))


def test_pieces_join_to_the_text_and_end_at_lines(tmp_path: Path) -> None:
    text = "a line\nanother line\n" + "x" * 30 + "\nlast"
    found = pieces(tmp_path, [text, "", "b"], size=12)
    assert "".join(piece.text for piece in found[:-2]) == text
    assert found[0] == Piece("a line\n", 7, False)
    assert max(piece.n_bytes for piece in found) == 12
    assert [piece.is_last for piece in found[:-2]] == [False] * (len(found) - 3) + [True]
    assert found[-2:] == [Piece("", 0, True), Piece("b", 1, True)]


@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_no_character_is_cut(tmp_path: Path, size: int) -> None:
    text = "aé€😀\n" * 9 + "😀" * 9
    found = pieces(tmp_path, [text], size)
    assert "".join(piece.text for piece in found) == text
    assert sum(piece.n_bytes for piece in found) == len(text.encode())


def test_long_documents_are_tokenised_as_a_whole(tmp_path: Path) -> None:
    text = "".join(f"line {i}, of many\n" for i in range(9000))  # several pieces
    path = tmp_path / "long.txt"
    path.write_text(text)
    prepared = prepare(TextFiles(str(path), None, None, 0.1, "utf-8", None), Byte(), tmp_path / "cache", progress=False)
    train, validation = prepared.splits["train"], prepared.splits["validation"]
    assert len(train) == len(validation) == 1
    assert prepared.tokenizer.decode(train.tokens) + prepared.tokenizer.decode(validation.tokens) == text
    assert len(train.tokens) == int(len(text) * 0.9) + 1


def test_a_shared_cache_can_be_read_by_colleagues(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = prepare(Dates(9, 2, 2, 0), Char(), tmp_path, progress=False).folder
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) & 0o044 for path in (folder, *folder.rglob("*"))} == {0o044}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_labels_are_mapped_not_held(labelled: Callable[..., Prepared]) -> None:
    split = labelled([("x", "a"), ("y", "b")] * 500, [("z", "b")]).splits["train"]
    assert split.labels is not None
    assert isinstance(split.labels.base, np.memmap)
    assert len(pickle.dumps(split)) < 2000


def test_what_has_changed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    source = TextFiles(str(path), None, None, 0.5, "utf-8", None)
    path.write_text("some text")
    before = origin(source, Byte(), tmp_path)
    assert before.changes(origin(source, Byte(), tmp_path)) == []
    assert before.changes(origin(source, BPE(300, lowercase=False), tmp_path)) == [
        "the tokenizer (Byte(), now BPE(vocab_size=300, lowercase=False))"
    ]
    path.write_text("some more text")
    assert before.changes(origin(source, Byte(), tmp_path))[0] == str(path)
    assert before.key == prepare_key(before)


def prepare_key(made_from: Origin) -> str:
    return Origin(**{**vars(made_from), "files": {}}).key  # names of files do not decide


def test_a_file_is_hashed_again_when_it_has_changed_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some text")
    first = content_hash(path)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert content_hash(path) == first
    monkeypatch.undo()
    path.write_text("some more text")
    assert content_hash(path) != first


class Seen(BPE):
    """Keeps the text that it is trained on."""

    def train(self, texts: Iterator[str]) -> Tokenizer:
        seen.append("".join(texts))
        return super().train(iter([seen[-1]]))


seen: list[str] = []


def test_a_tokenizer_is_trained_on_a_part_of_much_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("".join(f"line {i}, of many\n" for i in range(20_000)))
    source = TextFiles(str(path), None, None, 0.1, "utf-8", None)
    monkeypatch.setattr(tokenise, "SAMPLE", 100_000)
    whole = (
        prepare(source, Seen(300, lowercase=False), tmp_path / "cache", progress=False).splits["train"].texts(0)["text"]
    )
    (read,) = seen
    assert 80_000 < len(read) <= 100_000
    numbers = [int(line.split()[1][:-1]) for line in read.splitlines()]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    assert numbers[-1] > 14_000  # of 18000 that are learnt
    assert "the tokenizer was trained on" in caplog.text
    caplog.clear()
    prepare(source, Byte(), tmp_path / "cache", progress=False)
    assert "the tokenizer was trained on" not in caplog.text  # nor on anything else
    characters = prepare(source, Char(), tmp_path / "cache", progress=False).tokenizer
    assert characters.decode(characters.encode(whole)) == whole


def test_progress_says_how_far_and_how_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "160"), ("TERM", "xterm")):  # as on a terminal
        monkeypatch.setenv(name, value)
    (tmp_path / "a.txt").write_text("some text\n" * 5000)
    prepare(
        TextFiles(str(tmp_path / "a.txt"), None, None, 0.1, "utf-8", None), Byte(), tmp_path / "cache", progress=True
    )
    shown = capsys.readouterr()
    assert shown.out == ""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.err)
    assert re.search(r"preparing data: tokenising validation .* 5\.0/5\.0 kB .* left 0:00:00", plain), plain


def test_a_source_without_validation_says_how_much_to_hold_out(tmp_path: Path) -> None:
    source = Dates(9, 2, 2, 0)
    rows = {"train": list(source.load()["train"])}
    whole = SimpleNamespace(
        kind="pairs", check=source.check, fingerprint=source.fingerprint, files=source.files, load=lambda: rows
    )
    with pytest.raises(ValueError, match=r"load gives no split validation, and there is no validation_fraction"):
        prepare(whole, Char(), tmp_path, progress=False)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some text")
    source, read = TextFiles(str(path), None, None, 0.5, "utf-8", None), module._read

    def read_and_change(*arguments: Any) -> Any:
        found = read(*arguments)
        path.write_text("some more text")
        return found

    monkeypatch.setattr(module, "_read", read_and_change)
    with pytest.raises(ValueError, match=r"a\.txt has changed while it was read; start again"):
        prepare(source, Byte(), tmp_path / "cache", progress=False)
    assert folders(tmp_path / "cache") == []
