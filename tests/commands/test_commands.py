from pathlib import Path

import pytest

from triform.commands import COMMANDS, main

RUN = ("resume", "rerun", "evaluate", "generate")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["help"], ["--help"]):
        assert main(words) == 0
        printed = capsys.readouterr().out
        assert all(f"triform {name}" in printed for name in COMMANDS)


@pytest.mark.parametrize("name", RUN)
def test_every_command_says_how_it_is_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert "RUN" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["genrate"], "did you mean 'generate'?"),
        (["resume"], "required: RUN"),
        (["evaluate", "x", "--splitt", "test"], "--splitt"),
        (["rerun", "."], "is no run's folder"),
        (["help", "optimiser"], "did you mean 'optimizer'?"),
        *(([name, "outputs/dates/nothing"], "outputs/dates/nothing: no such run") for name in RUN),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    fragment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert fragment in printed.err


def test_a_group_has_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "optimizer"]) == 0
    assert "peak learning rate" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("verify", "dates"), ("plan",), ("explain", "seed"), ("inspect",)])
def test_a_config_dir_that_is_not_there_is_named(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, f"--config-dir={tmp_path / 'none'}"]) == 2
    said = f"error: --config-dir {tmp_path / 'none'}: there is no such folder; name the one that your options are in\n"
    assert capsys.readouterr().err == said
