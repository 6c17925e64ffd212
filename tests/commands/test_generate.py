"""`triform generate` of runs that write, and of one that does not."""

from pathlib import Path

import pytest
from filelock import FileLock

from tests.training.runs import SIZES, make
from triform.commands import main
from triform.run.compose import compose
from triform.run.folder import RunFolder, write_config
from triform.run.job import checked, created, rank_main, settled
from triform.run.load import open_run
from triform.run.ranks import start_all

SHORT = ("trainer.max_steps=1", "trainer.val_interval=1")


def trained(folder: RunFolder) -> str:
    assert start_all([{}], rank_main, (folder, False)) == 0
    return str(folder.path)


def test_a_decoder_that_chooses_classes_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.tsv").write_text("text\tlabel\n" + "".join(f"word {n}\t{'ab'[n % 2]}\n" for n in range(40)))
    words = ["model=decoder", "task=classification", "data=labelled", f"data.train_files={tmp_path / 'x.tsv'}"]
    words += ["tokenizer=char", "data.seq_len=16", "logger=csv", *SIZES, *SHORT, f"paths.outputs={tmp_path}/outputs"]
    config = settled(compose(words))
    run = trained(created(config, [], checked(config)))
    assert main(["generate", run, "--prompt", "word"]) == 2
    assert "trained on Classification writes nothing; measure it with triform evaluate" in capsys.readouterr().err


def test_how_to_draw_is_heeded_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decoder = trained(make(tmp_path, "decoder", *SHORT))
    unfit = {"temperature": -1, "top-p": 7, "top-k": 0, "max-new-tokens": 0, "seed": -1}
    unfit |= {"min-p": 2.0, "repetition-penalty": 0.0, "num-beams": 0, "length-penalty": "inf"}
    for option, value in unfit.items():
        assert main(["generate", decoder, "--prompt", "def ", f"--{option}", str(value)]) == 2
        assert capsys.readouterr().err.startswith(f"error: --{option} {value}")
    drawn = []
    for options in (["--seed", "1"], ["--seed", "2"], ["--seed", "1", "--max-new-tokens", "3"], []):
        assert main(["generate", decoder, "--prompt", "def ", *options]) == 0
        drawn.append(capsys.readouterr().out)
    for options in (["--num-beams", "3"], ["--num-beams", "3"], ["--min-p", "1"], ["--temperature", "0"]):
        assert main(["generate", decoder, "--prompt", "def ", "--max-new-tokens", "9", *options]) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[4] == drawn[5]
    assert drawn[6] == drawn[7]
    penalised = ["--temperature", "0", "--repetition-penalty", "100", "--max-new-tokens", "9"]
    assert main(["generate", decoder, "--prompt", "def ", *penalised]) == 0
    assert capsys.readouterr().out != drawn[7]
    for options, message in (
        (["--num-beams", "2", "--top-k", "3"], "--top-k: a search draws nothing"),
        (["--length-penalty", "2"], "--length-penalty: only a search has one; set --num-beams above 1"),
    ):
        assert main(["generate", decoder, "--prompt", "def ", *options]) == 2
        assert message in capsys.readouterr().err
    assert drawn[0] != drawn[1]
    assert drawn[0].startswith(drawn[2][:-1])
    pairs = trained(make(tmp_path, "encoder_decoder", *SHORT))
    capsys.readouterr()
    assert main(["generate", pairs, "--prompt", "def"]) == 0
    streamed = capsys.readouterr()
    assert "warning" not in streamed.err
    loaded = open_run(pairs)
    answered = loaded.objective.answer(loaded.model, [loaded.tokenizer.source.encode("def")])
    assert streamed.out == f"{answered[0]}\n"
    for option in ("--temperature", "--top-k", "--top-p", "--seed", "--max-new-tokens", "--min-p", "--num-beams"):
        assert main(["generate", pairs, "--prompt", "def", option, "1"]) == 2
        assert f"{option}: a model of pairs gives its likeliest answer" in capsys.readouterr().err


def test_what_is_not_read_of_a_prompt_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--max-new-tokens", "1"]
    for family, kept in (("decoder", "last"), ("encoder_decoder", "first")):
        run = trained(make(tmp_path, family, *SHORT))
        capsys.readouterr()
        assert main(["generate", run, "--prompt", "\u20ac" * 999, *(few if kept == "last" else [])]) == 0
        said = capsys.readouterr().err
        assert f"warning: the prompt has 999 tokens; the {kept} " in said
        assert "warning: the prompt holds something that the tokenizer does not know" in said


def test_a_damaged_run_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path, "decoder", *SHORT)
    run = trained(folder)
    whole = folder.read_config()

    def refused(*commands: str) -> str:
        errors = []
        for words in commands:
            assert main([*words.split(), run]) == 2, words
            errors.append(capsys.readouterr().err)
            assert errors[-1].count("\n") == 1
        return "".join(errors)

    write_config(folder, {key: value for key, value in whole.items() if key != "task"})
    assert refused("evaluate", "generate --prompt a").count("config.yaml: task._target_ is missing") == 2
    assert "task is missing" in refused("resume", "rerun")
    write_config(folder, {**whole, "model": {**whole["model"], "d_model": 12}})
    assert "best.ckpt has embedding.table.weight of shape [" in refused("evaluate")
    write_config(folder, {**whole, "model": {k: v for k, v in whole["model"].items() if k != "d_ff"}})
    assert "config.yaml: " in refused("evaluate")
    write_config(folder, whole)
    (folder.tokenizer / "tokenizer.json").write_text("{")
    assert "tokenizer.json cannot be read" in refused("evaluate")
    for text in (": [", "3", "[{a: 1}]"):
        folder.overrides.write_text(text)
        assert f"{folder.overrides} " in refused("rerun")
    folder.overrides.unlink()
    assert f"{folder.overrides} cannot be read" in refused("rerun")


def test_a_run_that_is_being_trained_is_not_named_as_one_that_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path, "decoder", *SHORT)
    with FileLock(folder.lock):
        assert main(["resume", str(folder.path)]) == 2
    printed = capsys.readouterr()
    assert "another process is training this run" in printed.err
    assert "run: " not in printed.out
