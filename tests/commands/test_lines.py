"""`triform translate` and `triform classify`: one line out for each line in; `triform evaluate` on other data."""

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import triform.commands.lines
from tests.training.runs import SIZES, make
from triform.commands import main
from triform.run.compose import compose
from triform.run.evaluate import evaluate
from triform.run.folder import RunFolder
from triform.run.job import checked, created, rank_main, settled
from triform.run.ranks import start_all

SHORT = ("trainer.max_steps=3", "trainer.val_interval=3")
AWKWARD = (
    "def one\n\nzwei\u2028drei\r\n\u0085\x0b \n" + "long " * 200 + "\nback\rslash\n\0nul\nthe same\nthe same\nno end"
)
"""Ten lines: blank ones, one that Python would cut, a CR inside, a long one, NUL, equal ones, no end at the end."""
N_LINES = 10
BLANK = (1, 3)

Piped = Callable[..., tuple[int, list[str], str]]


def trained(folder: RunFolder) -> str:
    assert start_all([{}], rank_main, (folder, False)) == 0
    return str(folder.path)


def labelled(folder: Path, kind: str, rows: list[str]) -> str:
    (folder / "x.tsv").write_text("".join(rows))
    task = {"labelled": "classification", "multilabelled": "multi_label", "scored": "regression"}[kind]
    words = ["model=encoder", f"task={task}", f"data={kind}", f"data.train_files={folder / 'x.tsv'}"]
    words += ["tokenizer=char", "data.seq_len=16", "logger=csv", *SIZES, *SHORT, f"paths.outputs={folder}/outputs"]
    config = settled(compose(words))
    return trained(created(config, [*words], checked(config)))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trained(make(tmp_path_factory.mktemp("pairs"), "encoder_decoder", *SHORT))


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [f"{'good' if n % 2 else 'bad'} word {n}\t{'ab'[n % 2]}\n" for n in range(40)]
    return labelled(tmp_path_factory.mktemp("classes"), "labelled", ["text\tlabel\n", *rows])


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Piped:
    """A command between two pipes: its code, its lines, what it says."""

    def call(text: str | bytes, *words: str) -> tuple[int, list[str], str]:
        data = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
        code = main([*words])
        out, err = capsysbinary.readouterr()
        assert not out or out.endswith(b"\n")
        return code, out.decode().split("\n")[:-1], err.decode()

    return call


def test_translate_keeps_lines_and_their_order(pairs: str, piped: Piped, monkeypatch: pytest.MonkeyPatch) -> None:
    code, whole, said = piped(AWKWARD, "translate", pairs)
    assert (code, len(whole)) == (0, N_LINES)
    assert [i for i, line in enumerate(whole) if not line] == [*BLANK] or all(not whole[i] for i in BLANK)
    assert whole[7] == whole[8]
    assert "1 of 10 lines have more than the 31 tokens that the model reads and were cut, line 5 first" in said
    lines = AWKWARD.encode().split(b"\n")
    for number in (0, 2, 9):
        assert piped(lines[number], "translate", pairs)[1] == [whole[number]]
    assert piped(AWKWARD, "translate", pairs, "--batch-size", "1")[1] == whole
    assert len(piped(AWKWARD, "translate", pairs, "--num-beams", "3", "--batch-size", "3")[1]) == N_LINES
    wide = ("--num-beams", "40")  # so many that ends are among them
    short, long = (piped(lines[0], "translate", pairs, *wide, "--length-penalty", to)[1] for to in ("-9", "9"))
    assert len(short[0]) < len(long[0])
    monkeypatch.setattr(triform.commands.lines, "WINDOW", 3)
    assert piped(AWKWARD, "translate", pairs, "--batch-size", "3")[1] == whole
    assert piped("", "translate", pairs) == (0, [], "")


def test_classify_keeps_lines_and_their_order(classes: str, piped: Piped) -> None:
    code, whole, said = piped(AWKWARD, "classify", classes)
    assert code == 0, said
    assert [line in ("a", "b") for line in whole] == [i not in BLANK for i in range(N_LINES)]
    assert "were cut, line 5 first" in said
    assert "warning: 8 of 10 lines hold something that the tokenizer does not know, line 1 first" in said
    said = piped("bad word\ngood word 1\n", "classify", classes)[2]
    assert re.fullmatch(r"2 lines in [0-9.]+ s, [0-9.e+]+ a second\n", said), said
    _, chances, _ = piped(AWKWARD, "classify", classes, "--probabilities", "--batch-size", "2")
    for line, text in zip(whole, chances, strict=True):
        if line:
            found = json.loads(text)
            assert list(found) == ["a", "b"]
            assert sum(found.values()) == pytest.approx(1)
            assert found[line] == max(found.values())
        else:
            assert text == ""


def test_several_classes_and_numbers(tmp_path: Path, piped: Piped) -> None:
    rows = ["text\tlabels\n", *(f"word {n}\t{'ab'[n % 2]},c\n" for n in range(40))]
    several = labelled(tmp_path, "multilabelled", rows)
    chances = json.loads(piped("word 3\n", "classify", several, "--probabilities")[1][0])
    assert piped("word 3\n", "classify", several)[1] == [", ".join(name for name, p in chances.items() if p > 0.5)]
    (tmp_path / "2").mkdir()
    scores = labelled(tmp_path / "2", "scored", ["text\tscore\n", *(f"word {n}\t{n / 8}\n" for n in range(40))])
    assert float(piped("word 3\n", "classify", scores)[1][0]) < 100
    code, lines, said = piped("word 3\n", "classify", scores, "--probabilities")
    assert (code, lines) == (2, [])
    assert "gives a score, which has none" in said


def test_a_tag_for_each_word(tmp_path: Path, piped: Piped) -> None:
    """One that tells digits from words, whatever stands between them; words beyond the model's reach have a mark."""
    lines = [f"{'ab' * (i % 3 + 1)} W\n{i} N\nof W\n{i * 7} N\n\n" for i in range(40)]
    (tmp_path / "x.conll").write_text("".join(lines))
    words = ["model=encoder", "task=token_classification", "data=tagged", f"data.train_files={tmp_path}/x.conll"]
    words += ["tokenizer=char", "data.seq_len=24", "logger=csv", *SIZES, "model.dropout=0", f"paths.outputs={tmp_path}"]
    words += ["trainer.max_steps=60", "trainer.max_epochs=null", "optimizer.lr=0.01", "scheduler=constant"]
    config = settled(compose(words))
    run = trained(created(config, words, checked(config)))
    text = "ab 3\n\n 7\t of  12 abab\n" + "ab 12 " * 7 + "\nof"
    code, whole, said = piped(text, "classify", run)
    assert code == 0, said
    assert whole[:3] == ["W N", "", "N W N W"]
    assert [tag in ("W", "N") for tag in whole[3].split()] == [True] * 8 + [False] * 6
    assert whole[3].split()[8:] == ["?"] * 6
    assert whole[4] == "W"
    assert "1 of 5 lines have more than the 22 tokens that the model reads and were cut, line 4 first" in said
    assert piped(text, "classify", run, "--batch-size", "1")[1] == whole
    code, _, said = piped(text, "classify", run, "--probabilities")
    assert code == 2
    assert "gives tags alone; leave it out" in said


def test_what_is_no_text_or_no_such_run_is_refused(pairs: str, classes: str, piped: Piped) -> None:
    code, lines, said = piped(b"fine\nna\xefve\n", "classify", classes)
    assert (code, lines) == (2, [])
    assert said.startswith("error: standard input, line 2 is not UTF-8 (byte 0xef)")
    code, lines, said = piped(b"1\nna\xefve\n", "generate", pairs)
    assert (code, len(lines)) == (2, 1)  # prompts are answered one by one
    assert said.splitlines()[-1].startswith("error: standard input, line 2 is not UTF-8 (byte 0xef)")
    for words, message in (
        (["translate", classes], "trained on Classification has learnt no targets"),
        (["classify", pairs], "trained on Seq2Seq chooses no class"),
        (["translate", pairs, "--num-beams", "0"], "--num-beams 0: set it to at least 1"),
        (["translate", pairs, "--length-penalty", "nan"], "--length-penalty nan: set it to a finite number"),
        (["translate", pairs, "--length-penalty", "2"], "--length-penalty: only a search has one"),
        (["classify", classes, "--batch-size", "0"], "--batch-size 0: set it to at least 1"),
    ):
        code, _, said = piped("x\n", *words)
        assert code == 2
        assert said.count("\n") == 1
        assert message in said


@pytest.mark.parametrize("name", ["translate", "generate"])
def test_a_closed_standard_input_is_named(
    name: str, pairs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main([name, pairs]) == 2
    assert capsys.readouterr().err.startswith("error: standard input is closed")


def test_figures_of_other_data_do_not_depend_on_batches_or_order(
    classes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{'good ' * (n % 5)}text {n}\t{'ab'[n % 3 == 0]}\n" for n in range(23)]
    (tmp_path / "one.tsv").write_text("text\tlabel\n" + "".join(rows))
    (tmp_path / "two.tsv").write_text("text\tlabel\n" + "".join(reversed(rows)))
    found = [
        evaluate(classes, overrides=[f"data.test_files={tmp_path / name}.tsv", *more])
        for name, more in (("one", []), ("two", []), ("one", ["data.batch_size=1"]), ("two", ["data.batch_tokens=40"]))
    ]
    assert {split for split, _ in found} == {"test"}
    for _, figures in found[1:]:
        assert figures == pytest.approx(found[0][1], rel=1e-5)
    said = capsys.readouterr().err.splitlines()
    assert said == ["warning: 13 of 23 test examples are longer than 14 tokens and are cut, by data.seq_len"
                    " (the longest has 27)"] * 4  # fmt: skip
    assert found[0][1]["accuracy"] in [pytest.approx(n / 23) for n in range(24)]
    own, same = evaluate(classes), evaluate(classes, overrides=["data.batch_size=3"])
    assert same[0] == own[0] == "validation"
    assert same[1] == pytest.approx(own[1], rel=1e-5)
    (tmp_path / "new.tsv").write_text("text\tlabel\nx\tnever\n")
    for words, message in (
        ([f"data.test_files={tmp_path}/new.tsv"], "label 'never' of the split test"),
        (["model.dropout=0"], "only its data may be another"),
        (["data.seq_len=41"], "data.seq_len=41 is beyond model.max_seq_len=40"),
        ([f"data.test_files={tmp_path}/one.tsv", "--split", "train"], "no such split; there are test"),
    ):
        assert main(["evaluate", classes, *words]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert message in said


def test_rows_of_another_length_are_measured(classes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("word " * (n % 5) + str(n), "ab"[n % 3 == 0]) for n in range(23)]
    for name, length in (("whole", None), ("cut", 9)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{text[:length]}\t{label}\n" for text, label in rows))
    files = {name: f"data.test_files={tmp_path / name}.tsv" for name in ("whole", "cut")}
    expected = evaluate(classes, overrides=[files["cut"]])
    assert not capsys.readouterr().err
    assert evaluate(classes, overrides=[files["whole"], "data.seq_len=11"])[1] == pytest.approx(expected[1])
    assert "are longer than 9 tokens and are cut" in capsys.readouterr().err
    assert evaluate(classes, overrides=[files["whole"]])[1]["loss"] != pytest.approx(expected[1]["loss"])
    assert "are longer than 14 tokens" in capsys.readouterr().err
    evaluate(classes, overrides=[files["whole"], "data.seq_len=32"])
    assert not capsys.readouterr().err
