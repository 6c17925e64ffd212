"""`triform explain`: the file and line, or the override, that a value is from."""

from pathlib import Path

import pytest

from triform.commands import main
from triform.run.explain import explain_key
from triform.run.help import conf_dir


def line_of(file: str, beginning: str) -> str:
    lines = (conf_dir() / file).read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if line.strip().startswith(beginning))
    return f"conf/{file}:{number}"


def test_the_last_file_that_states_a_key_holds() -> None:
    found = explain_key("optimizer.lr", [], [])
    assert [source.place for source in found.sources] == [
        line_of("optimizer/adamw.yaml", "lr:"),
        line_of("experiment/dates.yaml", "lr:"),
    ]
    assert float(found.value) == float(found.sources[-1].text)
    assert "peak learning rate" in found.sources[0].comment
    assert found.choices == "a number"


def test_the_command_line_wins() -> None:
    found = explain_key("optimizer.lr", ["optimizer.lr=3"], [])
    assert (found.value, found.sources[-1].place) == ("3", "command line")


def test_another_class_takes_the_recipes_value_back() -> None:
    found = explain_key("optimizer.lr", ["optimizer=lion"], [])
    assert found.sources[0].place == line_of("optimizer/lion.yaml", "lr:")
    assert float(found.value) == float(found.sources[0].text) == float(found.sources[-1].text)
    assert "recipe" in found.sources[-1].place


def test_an_interpolation_is_shown_beside_its_value() -> None:
    found = explain_key("paths.cache", ["paths.outputs=there"], [])
    assert found.value == "there/.cache"
    assert found.sources[0].text == "${paths.outputs}/.cache"


def test_a_file_that_builds_on_another_names_both() -> None:
    found = explain_key("model.attention.window", ["model/attention=sliding_window"], [])
    assert [source.place.split("/")[-1].split(":")[0] for source in found.sources] == [
        "multi_head.yaml",
        "sliding_window.yaml",
    ]


@pytest.mark.parametrize("key", ["model/attention", "model.attention"])
def test_a_group_says_who_chose_and_what_else_there_is(key: str) -> None:
    found = explain_key(key, ["model/attention=grouped_query"], [])
    assert (found.key, found.value) == ("model/attention", "grouped_query")
    assert found.sources[0].place == line_of("model/encoder_decoder.yaml", "- attention: ")
    assert found.sources[-1].place == "command line"
    assert found.choices is not None
    assert "sliding_window" in found.choices.split(", ")


def test_one_stacks_choice_is_not_the_others() -> None:
    words = ["model/attention@model.encoder.attention=sliding_window"]
    for key in ("model.encoder.attention", "model/attention@model.encoder.attention"):
        assert explain_key(key, words, []).value == "sliding_window"
    assert explain_key("model.decoder.attention", words, []).value == "null"
    assert explain_key("model/attention", words, []).value == "multi_head"


def test_a_recipe_that_the_data_brings_along_is_named() -> None:
    words = ["data=labelled", "data.train_files=x"]
    assert explain_key("experiment", words, []).sources[-1].place == "the data set, which has this recipe"
    assert explain_key("task", words, []).sources[-1].place == line_of("experiment/labelled.yaml", "- override /task")


def test_a_folder_of_ones_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "optimizer").mkdir()
    file = tmp_path / "optimizer" / "mine.yaml"
    file.write_text("defaults:\n  - adamw\n\nlr: 0.7    # my own\n")
    found = explain_key("optimizer.lr", ["optimizer=mine", "experiment=none"], [tmp_path])
    assert found.sources[-1].place == f"{file}:4"
    assert found.sources[-1].comment == "my own"
    choices = explain_key("optimizer", [], [tmp_path]).choices
    assert choices is not None
    assert "mine" in choices.split(", ")


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["optimizer.lrr"], "did you mean 'optimizer.lr'?"),
        (["model.encoder"], "is a group of keys: model.encoder.n_layers"),
        (["seed", "optimizer=lio"], "did you mean 'lion'?"),
        ([], "required: KEY"),
    ],
)
def test_bad_input_is_one_line(words: list[str], fragment: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *words]) == 2
    said = capsys.readouterr().err
    assert fragment in said
    assert said.count("\n") == 1


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "trainer.precision"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "trainer.precision=auto"
    assert line_of("trainer/default.yaml", "precision:") in shown[1]
    assert "bf16-mixed" in shown[-1]


def test_a_sweep_is_explained_value_by_value(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ["-m", "model.d_ff=8,9", "seed=range(5)", "optimizer=adamw,lion"]
    assert main(["explain", "model.d_ff", *sweep]) == 0
    shown = capsys.readouterr().out
    assert shown.count("model.d_ff=8\n") == shown.count("model.d_ff=9\n") == 1
    assert "  in 10 of 20 runs: model.d_ff=8 seed=0 optimizer=adamw; model.d_ff=8 seed=0 optimizer=lion; " in shown
    assert "and 6 more" in shown
    assert main(["explain", "optimizer.lr", "-m", "optimizer=adamw,lion"]) == 0
    shown = capsys.readouterr().out
    assert line_of("optimizer/lion.yaml", "lr:") in shown
    assert "in 1 of 2 runs: optimizer=adamw\n" in shown
    assert main(["explain", "model/attention", "model/attention=multi_head,sinks", "-m"]) == 0
    assert capsys.readouterr().out.startswith("model/attention=multi_head\n")


def test_a_run_of_a_sweep_without_the_key_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "optimizer.momentum", "-m", "optimizer=muon,adamw"]) == 2
    said = capsys.readouterr().err
    assert "optimizer.momentum: no such key" in said
    assert said.endswith("(in the run with optimizer=adamw)\n")


def test_a_searched_key_is_explained_branch_by_branch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "optimizer.lr", "-m", "search=small", "seed=3"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("optimizer.lr=")] == [
        "optimizer.lr=tag(log, interval(3e-4, 1e-2))",
        "optimizer.lr=tag(log, interval(3e-3, 1e-1))",
    ]
    places = [line.split()[0] for line in shown if line.endswith("searched")]
    lines = (conf_dir() / "search" / "small.yaml").read_text().splitlines()
    numbers = [i for i, line in enumerate(lines, 1) if line.strip().startswith("- values:")]
    assert places == [f"conf/search/small.yaml:{number}" for number in numbers]
    assert sum("where optimizer=muon; searched" in line for line in shown) == 1
    assert any(line_of("optimizer/muon.yaml", "lr:") in line for line in shown)


def test_what_is_typed_changes_the_search_that_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "optimizer.lr", "-m", "search=small", "optimizer=muon"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("optimizer.lr=") == 1
    assert "where optimizer=muon" in shown
    assert main(["explain", "optimizer.lr", "-m", "search=small", "optimizer.lr=interval(1,2)"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "optimizer.lr=interval(1,2)"
    assert shown[-2].split() == ["command", "line", "interval(1,2)", "searched"]
    assert main(["explain", "model.d_ff", "-m", "search=small"]) == 0
    assert "in 2 of 2 runs: model.dropout=0.0 optimizer=adamw" in capsys.readouterr().out
    assert main(["explain", "seed", "-m", "search=smal"]) == 2
    assert "did you mean 'small'?" in capsys.readouterr().err


def test_a_space_of_ones_own_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "search").mkdir()
    file = tmp_path / "search" / "mine.yaml"
    file.write_text("# @package hydra.sweeper\nspace:\n  optimizer: choice(adamw, lion)\n  seed: range(4)\n")
    words = ["-m", "search=mine", "--config-dir", str(tmp_path)]
    assert main(["explain", "seed", *words]) == 0
    assert f"{file}:4" in capsys.readouterr().out
    assert main(["explain", "optimizer", *words]) == 0
    assert f"{file}:3" in capsys.readouterr().out
