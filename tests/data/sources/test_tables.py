"""Tables as they are found in the world: each is read rightly, or refused in one line that names it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from triform.data.sources.tables import Column, as_text, check_columns, read_table

KEY = "data.train_files"


def table(tmp_path: Path, text: str, name: str = "x.tsv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def columns(path: Path, **columns: Column) -> list[list[Any]]:
    """The cells of each column."""
    check_columns(path, KEY, columns, "utf-8")
    rows = [cells for _, cells in read_table(path, KEY, columns, "utf-8")]
    return [list(cells) for cells in zip(*rows, strict=True)]


def places(path: Path, **columns: Column) -> list[str]:
    return [str(place) for place, _ in read_table(path, KEY, columns, "utf-8")]


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
        assert columns(path, text=None, label=None) == [["é", "b"], [1, True]]
        assert places(path, text=None, label=None) == [f"{path}, line 1", f"{path}, line 3"]

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
            ("x.txt", "a,1\n", None, r"x\.txt has one column, where text and label are read; .*tabs, or .*in \.csv"),
            ("x.csv", "text;label\na;1\n", "label", r"x\.csv has one column, .*; separate them by commas$"),
            ("x.tsv", "7\ta\t1\n", None, r"x\.tsv has 3 columns, and no header names text, label; set data\.text_col"),
            ("x.jsonl", '{"text": "a", "class": 1}\n', None, r"data\.label_column=label .*x\.jsonl, line 1, which has"),
        ],
    )
    def test_a_wrong_column_is_seen_in_the_first_line(
        self, tmp_path: Path, name: str, text: str, label: Column, message: str
    ) -> None:
        path = table(tmp_path, text, name)
        for look in (check_columns, lambda *arguments: list(read_table(*arguments))):
            with pytest.raises(ValueError, match=message) as caught:
                look(path, KEY, {"text": None, "label": label}, "utf-8")
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("x.tsv", "a\t1\nb 0\n", r"x\.tsv, line 2 has 1 columns, too few: line 1 has 2; mend the line"),
            ("x.tsv", "a\t1\n\nb\tc\t0\n", r"x\.tsv, line 3 has 3 columns, too many: .* may have a tab within a text"),
            ("x.tsv", "\n \r\n", r"x\.tsv holds no rows"),
            ("x.csv", "\n \n", r"x\.csv holds no rows"),
            ("x.jsonl", "\n\n", r"x\.jsonl holds no rows"),
            ("x.csv", 'a,1\n"b,0\n', r"x\.csv, line 2 is not CSV"),
            ("x.csv", 'a,1\nb,0\n"c,1\nd,0\ne,1\n', r"x\.csv, line 3 is not CSV \(.*on line 5\); mend the quotes"),
            ("x.csv", 'a,1\n"b" c,0\n', r"x\.csv, line 2 is not CSV"),
            ("x.csv", "a,1\nb,c,0\n", r"x\.csv, line 2 has 3 columns, too many: line 1 has 2; .* or its quotes"),
            ("x.csv", 'a,1\n"b\nc",0\nd\n', r"x\.csv, line 4 has 1 columns, too few"),
            ("x.jsonl", '{"text": "a", "label": 1}\n{"text"\n', r"x\.jsonl, line 2 is not JSON"),
            (
                "x.jsonl",
                '{"text": "a", "label": 1}\r\n{"text": "b"}\r\n',
                r"label_column=label .*line 2, which has text",
            ),
            ("x.jsonl", '{"text": "a", "label": null}\n', r"line 1 has null for 'label' \(data\.label_column\)"),
            ("x.jsonl", '{"text": "a", "text": "b", "label": 1}\n', r"line 1 names 'text' twice; name each value once"),
            ("x.jsonl", "[" * 100_000 + "\n", r"x\.jsonl, line 1 is not JSON"),
            ("x.jsonl", "[1, 2]\n", r"x\.jsonl, line 1 is no JSON object"),
            ("x.tsv", "text\ttext\tlabel\na\tb\t1\n", r"text_column=text names 2 columns of .*a number, 0 or 1"),
        ],
    )
    def test_a_wrong_row_is_named(self, tmp_path: Path, name: str, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message) as caught:
            list(read_table(table(tmp_path, text, name), KEY, {"text": None, "label": None}, "utf-8"))
        assert "\n" not in str(caught.value)

    def test_a_column_that_is_there_twice_may_be_left_alone(self, tmp_path: Path) -> None:
        path = table(tmp_path, "n\tn\ttext\tlabel\n1\t2\ta\tA\n")
        assert columns(path, text=None, label=None) == [["a"], ["A"]]
        assert columns(path, text=1, label="label") == [["2"], ["A"]]

    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    @pytest.mark.parametrize("name", ["x.tsv", "x.csv"])
    def test_any_line_end(self, tmp_path: Path, name: str, end: str) -> None:
        comma = "," if name == "x.csv" else "\t"
        rows = [("text", "label"), ("a\u2028b\x85", "1"), ("c\x0cd", "0")]
        path = table(tmp_path, "".join(f"{text}{comma}{label}{end}" for text, label in rows), name)
        assert columns(path, text=None, label=None) == [["a\u2028b\x85", "c\x0cd"], ["1", "0"]]

    def test_blank_cells_are_cells(self, tmp_path: Path) -> None:
        assert columns(table(tmp_path, "a\tA\n\t\n \nb\t\n"), source=0, target=1) == [["a", "", "b"], ["A", "", ""]]
        assert columns(table(tmp_path, "a,A\n,\n \nb,\n", "x.csv"), source=0, target=1) == [
            ["a", "", "b"],
            ["A", "", ""],
        ]

    def test_a_row_is_where_it_begins(self, tmp_path: Path) -> None:
        path = table(tmp_path, 'text,label\r\n"a\r\n\r\nb",1\r\n\r\nc,2\r\n', "x.csv")
        assert columns(path, text=None, label=None) == [["a\r\n\r\nb", "c"], ["1", "2"]]
        assert places(path, text=None, label=None) == [f"{path}, line 2", f"{path}, line 6"]

    def test_a_cell_of_two_megabytes(self, tmp_path: Path) -> None:
        for name, text in (("x.csv", "text\n{}\n"), ("x.jsonl", '{{"text": "{}"}}\n')):
            path = table(tmp_path, text.format("x" * 2_000_000), name)
            assert len(columns(path, text="text")[0][0]) == 2_000_000


class TestArrow:
    def write(self, tmp_path: Path, values: dict[str, list[Any]], name: str) -> Path:
        import pyarrow
        import pyarrow.parquet

        path, data = tmp_path / name, pyarrow.table(values)
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(data, path)
        else:
            new = pyarrow.ipc.new_file if name.startswith("file") else pyarrow.ipc.new_stream
            with new(path, data.schema) as writer:
                writer.write_table(data, max_chunksize=2)
        return path

    @pytest.mark.parametrize("name", ["x.parquet", "file.arrow", "stream.arrow"])
    def test_is_read_as_other_tables(self, tmp_path: Path, name: str) -> None:
        values = {
            "other": [0.5, 1.5, 2.5],
            "label": [1, 0, 1],
            "text": ["a", "é\n", "c"],
            "list": [["x"], [], ["y", "z"]],
        }
        path = self.write(tmp_path, values, name)
        assert columns(path, text=None, label=None) == [["a", "é\n", "c"], [1, 0, 1]]
        assert columns(path, tokens="list", label=0) == [[["x"], [], ["y", "z"]], [0.5, 1.5, 2.5]]
        assert places(path, text=None, label=None)[2] == f"{path}, row 3"

    @pytest.mark.parametrize("name", ["x.parquet", "file.arrow", "stream.arrow"])
    def test_faults_are_named(self, tmp_path: Path, name: str) -> None:
        path = self.write(tmp_path, {"text": ["a", None], "class": [1, 0], "n": [1, 2]}, name)
        for look in (check_columns, lambda *arguments: list(read_table(*arguments))):
            with pytest.raises(
                ValueError, match=r"data\.label_column=label is no column of .*, which has text, class, n"
            ):
                look(path, KEY, {"text": None, "label": None}, "utf-8")
        with pytest.raises(ValueError, match=r", row 2 has null for data\.text_column"):
            columns(path, text=None, label="n")
        data = path.read_bytes()
        for broken in (data[: len(data) // 2], b"no table at all\n", data[:4] + data[4:][::-1]):
            path.write_bytes(broken)
            with pytest.raises(ValueError, match=r"cannot be read as (Parquet|Arrow) \(.*\); check the file") as caught:
                columns(path, text=None, label="n")
            assert "\n" not in str(caught.value)

    def test_classes_that_datasets_numbered_have_their_names(self, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets")
        features = datasets.Features(
            {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
        )
        data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
        data.to_parquet(str(tmp_path / "x.parquet"))
        assert columns(tmp_path / "x.parquet", text=None, label=None) == [["a", "b"], ["yes", "no"]]


@pytest.mark.parametrize(
    ("cell", "text"), [("a", "a"), (1, "1"), (1.0, "1"), (1.5, "1.5"), (True, "true"), (2**70, str(2**70))]
)
def test_cells_as_text(tmp_path: Path, cell: Any, text: str) -> None:
    path = table(tmp_path, json.dumps({"text": cell}) + "\n", "x.jsonl")
    ((place, (found,)),) = read_table(path, KEY, {"text": None}, "utf-8")
    assert as_text(found, place, "text") == text


@pytest.mark.parametrize("name", ["x.json", "x.ndjson", "x.json.gz"])
def test_other_endings_of_lines_of_json(tmp_path: Path, name: str) -> None:
    line = b'{"text": "a", "label": 1}\n'
    (tmp_path / name).write_bytes(gzip.compress(line) if name.endswith(".gz") else line)
    assert columns(tmp_path / name, text=None, label=None) == [["a"], [1]]


@pytest.mark.parametrize("cell", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_value_is_no_text(tmp_path: Path, cell: str) -> None:
    """As pandas writes what is missing."""
    path = table(tmp_path, f'{{"text": {cell}}}\n', "x.jsonl")
    ((place, (found,)),) = read_table(path, KEY, {"text": None}, "utf-8")
    with pytest.raises(ValueError, match=r"x\.jsonl, line 1 has -?(nan|inf) for data\.text_column, which is no value"):
        as_text(found, place, "text")


@pytest.mark.parametrize("cell", [["a"], {"a": 1}])
def test_a_cell_that_is_no_text_is_refused(tmp_path: Path, cell: Any) -> None:
    path = table(tmp_path, json.dumps({"text": cell}) + "\n", "x.jsonl")
    ((place, (found,)),) = read_table(path, KEY, {"text": None}, "utf-8")
    with pytest.raises(ValueError, match=r"x\.jsonl, line 1: data\.text_column holds a (list|dict), no text"):
        as_text(found, place, "text")
