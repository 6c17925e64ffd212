import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.run.tiny import folder_of, start, stop_at, train, triform
from triform.run.again import continued, keep
from triform.run.errors import BadInput
from triform.run.folder import RunFolder

TRAINER = {"devices": "auto", "num_nodes": 1, "accumulate": 2, "max_steps": 9, "async_save": True}
CONFIG = {"seed": 3, "trainer": TRAINER}


def test_what_a_run_goes_on_with_is_as_typed_and_the_rest_as_it_was() -> None:
    found = continued(CONFIG, ["trainer.devices=4", "trainer.async_save=false", "trainer.accumulate=1"])
    assert found["trainer"] == TRAINER | {"devices": 4, "async_save": False, "accumulate": 1}
    assert found["seed"] == 3
    assert TRAINER["devices"] == "auto"
    assert continued(CONFIG, []) == CONFIG


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.max_steps=20", "a run that goes on learns what it began to; change one of trainer.d"),
        ("trainer.device=2", r"did you mean 'trainer.devices'\?"),
        ("seed=4", "or start anew: triform rerun RUN seed=4"),
        ("trainer.compile=true", "change one of"),  # which this run has not
        ("trainer.devices", "write key=value"),
        ("trainer.devices=[1", "is no value"),
    ],
)
def test_what_would_learn_something_else_is_refused(override: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        continued(CONFIG, [override])
    assert "\n" not in str(refusal.value)


def test_the_folder_says_how_its_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path)
    folder.config.write_text(yaml.safe_dump({**CONFIG, "trust": ["mine"]}))
    keep(folder, {**continued(CONFIG, ["trainer.devices=2"]), "trust": []})
    assert folder.read_config() == {**CONFIG, "trainer": {**TRAINER, "devices": 2}, "trust": ["mine"]}
    assert capsys.readouterr().err == "going on with trainer.devices=2, before auto\n"
    written = folder.config.stat().st_mtime_ns
    keep(folder, {**folder.read_config(), "trust": []})
    assert folder.config.stat().st_mtime_ns == written
    assert not capsys.readouterr().err


@pytest.mark.slow  # tests/training compares what is learned
def test_a_run_goes_on_with_another_number_of_ranks_by_either_launcher(tmp_path: Path) -> None:
    process = start(tmp_path, "name=one", "model.dropout=0")
    stop_at(process, tmp_path / "outputs" / "one", step=2)
    process.communicate(timeout=100)
    folder = next((tmp_path / "outputs" / "one").iterdir())
    script = tmp_path / "triform_of_tests.py"
    script.write_text("import sys\nfrom triform.commands import main\nsys.exit(main(sys.argv[1:]))\n")
    line = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", str(script), "resume", str(folder))
    done = train(tmp_path, command=line)
    assert done.returncode == 0, done.stderr
    assert "going on with trainer.devices=2, before 1" in done.stderr
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"
    done = triform(tmp_path, "resume", str(folder), "trainer.devices=1")  # finished, which is what it says again
    assert done.returncode == 0, done.stderr
    assert folder_of(done) == folder
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["devices"] == 1
    refused = triform(tmp_path, "resume", str(folder), "trainer.devices=0")
    assert refused.returncode == 2
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["devices"] == 1
