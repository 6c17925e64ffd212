"""`triform generate` of runs that write, and of one that does not."""

from pathlib import Path

import pytest

from tests.training.runs import SIZES, make
from triform.commands import main
from triform.run.compose import compose
from triform.run.folder import RunFolder
from triform.run.job import checked, created, rank_main, settled
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
    drawn = []
    for options in (["--seed", "1"], ["--seed", "2"], ["--seed", "1", "--max-new-tokens", "3"], []):
        assert main(["generate", decoder, "--prompt", "def ", *options]) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] != drawn[1]
    assert drawn[0].startswith(drawn[2][:-1])
    pairs = trained(make(tmp_path, "encoder_decoder", *SHORT))
    assert main(["generate", pairs, "--prompt", "def"]) == 0
    for option in ("--temperature", "--top-k", "--top-p", "--seed", "--max-new-tokens"):
        assert main(["generate", pairs, "--prompt", "def", option, "1"]) == 2
        assert f"{option}: a model of pairs gives its likeliest answer" in capsys.readouterr().err
