"""`triform inspect`: of a command line, of a run, of a folder of runs."""

from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate

from tests.models.composed import settings
from tests.training.runs import make
from triform.commands import main
from triform.data.tokenizers import Tokenizer
from triform.run.pretrained import save_pretrained


def inspect(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["inspect", *words]) == 0
    return capsys.readouterr().out


def test_a_command_line_is_shown_without_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = inspect(capsys, "model.d_model=64", f"paths.outputs={tmp_path}")
    assert "EncoderDecoder" in shown
    assert "2 x Block" in shown
    assert "q_proj" in shown
    assert "weight 64 x 64" in shown
    assert "shares embedding.table.weight" in shown
    assert "FLOPs per token" in shown
    assert "256 tokens assumed; model.vocab_size=N sets it" in shown
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_that_is_given_is_not_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = inspect(capsys, "model.vocab_size=100", "--depth", "2")
    assert "weight 100 x 128" in shown
    assert "assumed" not in shown
    assert "q_proj" not in shown


def test_a_preset_is_known_by_its_name_and_flags_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    shown = inspect(capsys, "llama2_7b", "--depth", "1", "data.seq_len=32")
    assert "parameters       6,738,415,616, shared ones counted once" in shown
    assert "rows of 32 tokens" in shown
    assert "shares" not in shown  # the head has weights of its own


def test_a_pretrained_folder_is_inspected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with torch.device("meta"):
        model = instantiate(settings("decoder", "model/norm=rms"), _convert_="all")(vocab_size=29)
    model.to_empty(device="cpu").initialise(0)
    save_pretrained(model, tmp_path / "model")
    shown = inspect(capsys, str(tmp_path / "model"))
    assert f"parameters       {sum(p.numel() for p in model.parameters()):,}, shared ones counted once" in shown
    assert "weight 29 x 24" in shown


def test_what_depends_on_values_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """A mixture's experts keep as much as they are given tokens."""
    shown = inspect(capsys, "model/feed_forward=mixture", "--depth", "1")
    assert "activations    unknown" in shown
    assert "optimizer      unknown" not in shown


def test_prepared_data_and_a_run_say_their_own_vocabulary(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder")
    n_tokens = Tokenizer.load(folder.tokenizer).vocab_size
    shown = inspect(capsys, str(folder.path))
    assert f"weight {n_tokens} x 24" in shown
    assert "assumed" not in shown
    words = ["model=decoder", "task=causal_lm", "data=text", f"data.train_files={tmp_path / 'source.txt'}"]
    shown = inspect(capsys, *words, "tokenizer=char", "model.d_model=24", f"paths.outputs={tmp_path / 'outputs'}")
    assert f"weight {n_tokens} x 24" in shown
    shown = inspect(capsys, str(folder.path), "model.n_layers=3")
    assert "layers.0-2" in shown


def test_a_folder_of_runs_is_a_line_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = [make(tmp_path, "decoder"), make(tmp_path, "decoder", "model.n_layers=1")]
    lines = inspect(capsys, str(runs[0].path.parent)).splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(run.path.name for run in runs)
    assert all("parameters" in line and "FLOPs per token" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["model=decodr"], "did you mean 'decoder'?"),
        (["nothing"], "nothing: no such run"),
        (["gpt2_tinny"], "no such run, folder or option of model (did you mean 'gpt2_tiny'?)"),
        (["a", "b"], "inspect one at a time"),
        (["gpt2", "bert_base"], "gpt2 bert_base: inspect one at a time"),
        (["model.n_heads=3"], "n_heads=3"),
        (["model.d_model=true"], "model.d_model=true is not a whole number"),
    ],
)
def test_bad_input_is_one_line(words: list[str], fragment: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *words]) == 2
    said = capsys.readouterr().err
    assert fragment in said
    assert said.count("\n") == 1
