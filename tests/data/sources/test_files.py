import gzip
from pathlib import Path

import pytest

from triform.data.sources.files import Column, check_columns, hold_out, lines, read_columns, read_text, resolve

KEY = "data.train_files"


def table(tmp_path: Path, text: str, name: str = "x.tsv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def columns(path: Path, **columns: Column) -> list[list[str]]:
    check_columns(path, KEY, columns)
    return read_columns(path, KEY, columns)


def test_resolves_names_lists_and_globs_in_order(tmp_path: Path) -> None:
    a, b = table(tmp_path, "a", "a.txt"), table(tmp_path, "b", "b.txt")
    assert resolve(str(a), KEY) == [a]
    assert resolve([str(b), str(a)], KEY) == [b, a]
    assert resolve(str(tmp_path / "*.txt"), KEY) == [a, b]


def test_a_name_with_brackets_is_a_name_first(tmp_path: Path) -> None:
    path = table(tmp_path, "a", "a[1].txt")
    assert resolve(str(path), KEY) == [path]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, r"data\.train_files is not set; name your files"),
        ("corpse.txt", r"corpse\.txt does not exist; did you mean .*corpus\.txt\?"),
        ("none/corpus.txt", r"none/corpus\.txt does not exist; nor does its folder"),
        ("*.csv", r"\*\.csv does not exist; see what is in"),
        ("empty.txt", r"empty\.txt is empty; name a file that has text"),
        (".", r"is a folder; name files in it, for example '.*/\*'"),
    ],
)
def test_refuses_files(tmp_path: Path, files: str | None, message: str) -> None:
    table(tmp_path, "text", "corpus.txt")
    table(tmp_path, "", "empty.txt")
    with pytest.raises(ValueError, match=message) as caught:
        resolve(files and str(tmp_path / files), KEY)
    assert "\n" not in str(caught.value)


def test_reads_gzip_and_leaves_out_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress("\ufeffé\r\n".encode()))
    assert read_text(path, KEY) == "é\r\n"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.txt", b"one\ntwo\nthr\xe9e\n", r"x\.txt, line 3 is not UTF-8 \(byte 0xe9\); convert the file"),
        ("x.txt.gz", b"plain", r"x\.txt\.gz cannot be read .*check the file"),
        ("x.txt.gz", gzip.compress(b"whole text" * 99)[:-12], r"x\.txt\.gz cannot be read"),
        ("x.txt.gz", gzip.compress(b""), r"x\.txt\.gz is empty"),
    ],
)
def test_refuses_content(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_text(tmp_path / name, KEY)


def test_lines_end_at_line_feeds_alone() -> None:
    assert lines("a\x0cb\u2028c\r\n\nd") == ["a\x0cb\u2028c", "", "d"]
    assert lines("a\n") == ["a"]


class TestColumns:
    def test_without_a_header_by_place(self, tmp_path: Path) -> None:
        assert columns(table(tmp_path, 'a "b\t1\nc\t1'), text=None, label=None) == [['a "b', "c"], ["1", "1"]]

    def test_by_number(self, tmp_path: Path) -> None:
        assert columns(table(tmp_path, "1\tx\ta b\n0\ty\tc\n"), text=2, label=0) == [["a b", "c"], ["1", "0"]]

    @pytest.mark.parametrize("header", ["sentence\ttarget", "Text\tLabel", "source\ttarget"])
    def test_a_header_of_other_names_is_no_row(self, tmp_path: Path, header: str) -> None:
        path = table(tmp_path, f"{header}\nab\t1\ncd\t0\nef\t1\ngh\t0\n")
        with pytest.raises(
            ValueError, match=r"x\.tsv: its first row .*; if it is a header, set data\.text_column and "
        ):
            columns(path, text=None, label=None)
        text, label = header.split("\t")
        assert columns(path, text=text, label=label) == [["ab", "cd", "ef", "gh"], ["1", "0", "1", "0"]]
        assert columns(path, text=0, label=1)[1] == [label, "1", "0", "1", "0"]

    def test_a_header_of_labelled_text_is_no_pair(self, tmp_path: Path) -> None:
        path = table(tmp_path, "text\tlabel\nab\t1\n")
        with pytest.raises(
            ValueError, match=r"first row holds text, label; .* data\.source_column and data\.target_column"
        ):
            columns(path, source=None, target=None)
        assert columns(path, source="text", target="label") == [["ab"], ["1"]]

    def test_one_row_may_be_all_there_is(self, tmp_path: Path) -> None:
        assert columns(table(tmp_path, "ab\t1\n"), text=None, label=None) == [["ab"], ["1"]]

    def test_by_name(self, tmp_path: Path) -> None:
        path = table(tmp_path, "coarse\tfine\ttext\nA\tB\tab\n")
        assert columns(path, text=None, label="fine") == [["ab"], ["B"]]

    def test_own_names_are_found(self, tmp_path: Path) -> None:
        assert columns(table(tmp_path, "label\ttext\n1\tab\n"), text=None, label=None) == [["ab"], ["1"]]

    def test_the_only_column_left(self, tmp_path: Path) -> None:
        path = table(tmp_path, "sentence\tlabel\nab\t1\n")
        assert columns(path, text=None, label=None) == [["ab"], ["1"]]
        assert columns(path, text="sentence", label=None) == [["ab"], ["1"]]

    def test_csv_with_quotes_and_line_breaks(self, tmp_path: Path) -> None:
        path = table(tmp_path, 'text,label\n"a, ""b""\nc",1\n', "x.csv")
        assert columns(path, text=None, label=None) == [['a, "b"\nc'], ["1"]]

    def test_json_lines_with_numbers_as_labels(self, tmp_path: Path) -> None:
        path = table(tmp_path, '{"text": "é", "label": 1, "other": []}\n\n{"label": true, "text": "b"}\n', "x.jsonl")
        assert columns(path, text=None, label=None) == [["é", "b"], ["1", "true"]]

    def test_gzipped(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tsv.gz"
        path.write_bytes(gzip.compress(b"a\t1\n"))
        assert columns(path, text=None, label=None) == [["a"], ["1"]]

    @pytest.mark.parametrize(
        ("name", "text", "label", "message"),
        [
            ("x.tsv", "text\tlabel\na\t1\n", "lable", r"data\.label_column=lable is no column .*mean label\?"),
            ("x.tsv", "a\t1\n", 2, r"data\.label_column=2 is no column of .*x\.tsv, which has 2; count from 0 to 1"),
            ("x.tsv", "text\tclass\tn\na\t1\t2\n", None, r"data\.label_column=label is no column .*has text, class"),
            ("x.tsv", "a good one\t1\n", "lable", r"data\.label_column=lable is no column .*a number from 0"),
            ("x.txt", "a,1\n", None, r"data\.label_column=null, so 1, is no column .*which has 1; .*\.tsv or \.csv"),
            ("x.jsonl", '{"text": "a", "class": 1}\n', None, r"data\.label_column=label .*x\.jsonl, line 1, which has"),
        ],
    )
    def test_a_wrong_column_is_seen_in_the_first_line(
        self, tmp_path: Path, name: str, text: str, label: Column, message: str
    ) -> None:
        path = table(tmp_path, text, name)
        for look in (check_columns, read_columns):
            with pytest.raises(ValueError, match=message) as caught:
                look(path, KEY, {"text": None, "label": label})
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("x.tsv", "a\t1\nb 0\n", r"x\.tsv, line 2 has 1 columns, too few for column 1"),
            ("x.tsv", "\n\n", r"x\.tsv holds no rows"),
            ("x.csv", 'a,1\n"b,0\n', r"x\.csv, line 2 is not CSV"),
            ("x.jsonl", '{"text": "a", "label": 1}\n{"text"\n', r"x\.jsonl, line 2 is not JSON"),
            ("x.jsonl", "[" * 100_000 + "\n", r"x\.jsonl, line 1 is not JSON"),
            ("x.jsonl", "[1, 2]\n", r"x\.jsonl, line 1 is no JSON object"),
        ],
    )
    def test_a_wrong_row_is_named(self, tmp_path: Path, name: str, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            read_columns(table(tmp_path, text, name), KEY, {"text": None, "label": None})


def test_hold_out_keeps_equal_texts_together_whatever_their_order() -> None:
    texts = [f"text {i % 40}" for i in range(120)]
    held_out = {text for text, out in zip(texts, hold_out(texts, 0.1), strict=True) if out}
    assert len(held_out) == 4
    assert not held_out & {text for text, out in zip(texts, hold_out(texts, 0.1), strict=True) if not out}
    backwards = texts[::-1]
    assert held_out == {text for text, out in zip(backwards, hold_out(backwards, 0.1), strict=True) if out}


def test_hold_out_takes_at_least_one_and_leaves_at_least_one() -> None:
    assert sum(hold_out(["a", "b"], 0.01)) == 1
    assert sum(hold_out(["a", "b"], 0.99)) == 1
