"""A run from its command line to its folder, and what can be done with that folder."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import triform
from tests.run.tiny import COMMAND, TINY, TRAIN, environment, folder_of, start, stop_at, train
from tests.run.tiny import triform as command
from triform.run.evaluate import evaluate
from triform.run.folder import RunFolder
from triform.run.load import open_run
from triform.run.parts import own_data
from triform.run.ranks import _free_port
from triform.training.saving import read_checkpoint

CALL = "from triform.run import main; sys.exit(main())"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs of this module are started: they share the cache of prepared data."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def finished(home: Path) -> Path:
    """The folder of a run that has finished."""
    done = train(home, "name=tiny", "seed=3")
    assert done.returncode == 0, done.stderr
    folder = folder_of(done)
    assert folder.parent == home / "outputs" / "tiny"
    return folder


def test_the_folder_holds_the_record(finished: Path) -> None:
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["seed"] == 3
    assert config["model"]["d_model"] == 16
    assert Path(config["paths"]["outputs"]).is_absolute()
    assert "seed=3" in yaml.safe_load((finished / "overrides.yaml").read_text())
    assert json.loads((finished / "environment.json").read_text())["seed"] == 3
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["error"] is None
    assert summary["monitor"] == {"name": "validation/loss", "mode": "min"}
    with (finished / "metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert (steps[0], steps[-1]) == (1, 8)
    for name in ("tokenizer/tokenizer.json", "checkpoints/last.ckpt", "checkpoints/best.ckpt"):
        assert (finished / name).is_file()
    log = (finished / "log.txt").read_text()
    assert "test/exact_match" in log
    assert "\x1b" not in log


def test_nothing_is_left_where_it_was_started(finished: Path, home: Path) -> None:
    assert [entry.name for entry in home.iterdir()] == ["outputs"]


def test_test_data_stays_unseen_where_that_is_asked_for(finished: Path, home: Path) -> None:
    done = train(home, "name=unseen", "trainer.test=false")
    assert done.returncode == 0, done.stderr
    folder = folder_of(done)
    summary, seen = (json.loads((run / "summary.json").read_text()) for run in (folder, finished))
    assert {name.partition("/")[0] for name in summary["final"]} == {"validation"}
    assert {name.partition("/")[0] for name in seen["final"]} == {"test"}
    with (folder / "metrics.csv").open() as file:
        assert not any(row[name] for row in csv.DictReader(file) for name in row if name.startswith("test/"))
    loaded = open_run(folder)
    prepared = own_data(RunFolder(folder), loaded.config)
    source = loaded.tokenizer.source
    texts = {
        split: {source.decode(row["source_ids"].tolist()) for row in prepared.splits[split]}
        for split in ("validation", "test")
    }
    lines = (folder / "samples.txt").read_text().splitlines()
    given = {line.removeprefix("given:").strip() for line in lines if line.startswith("given:")}
    assert given
    assert given <= texts["validation"] - texts["test"]


def test_load_gives_the_model_that_was_saved(finished: Path) -> None:
    model, tokenizer = triform.load(finished)
    assert not model.training
    saved = read_checkpoint(finished / "checkpoints" / "best.ckpt")["state_dict"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved[f"model.{name}"])
    last, _ = triform.load(finished / "checkpoints" / "last.ckpt")
    assert last.state_dict().keys() == model.state_dict().keys()
    assert tokenizer.decode(tokenizer.encode("3/5/1987")) == "3/5/1987"


def test_load_builds_only_what_is_trusted(finished: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((finished / "config.yaml").read_text())
    for target in ("os.system", "triform.training.environment._run", "triform.training.checkpoints.link"):
        config["model"] |= {"_target_": target, "trust": ["os"]}
        copy = tmp_path / target
        copy.mkdir()
        (copy / "config.yaml").write_text(yaml.safe_dump({**config, "trust": ["os", "subprocess"]}))
        (copy / "tokenizer").symlink_to(finished / "tokenizer")
        with pytest.raises(ValueError, match=r"model\._target_="):
            triform.load(copy)


def test_evaluate_repeats_the_runs_own_figures(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    split, figures = evaluate(finished)
    assert split == "test"
    for name, value in figures.items():
        assert value == pytest.approx(summary["final"][f"test/{name}"], rel=1e-6), name


def test_evaluate_and_generate_are_commands(finished: Path, home: Path) -> None:
    done = command(home, "evaluate", str(finished), "--split", "validation", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() >= {"validation/loss", "validation/exact_match"}
    done = command(home, "generate", str(finished), stdin="3/5/1987\n1 May 2001\n")
    assert done.returncode == 0, done.stderr
    answer = open_run(finished).objective.answer  # type: ignore[attr-defined]
    loaded = open_run(finished)
    expected = [answer(loaded.model, [loaded.tokenizer.encode(text)])[0] for text in ("3/5/1987", "1 May 2001")]
    assert done.stdout.splitlines() == expected


def test_rerun_changes_what_is_asked_for_and_nothing_else(finished: Path, home: Path) -> None:
    done = command(home, "rerun", str(finished), "model.d_model=12", "trainer.max_steps=2")
    assert done.returncode == 0, done.stderr
    before = yaml.safe_load((finished / "config.yaml").read_text())
    after = yaml.safe_load((folder_of(done) / "config.yaml").read_text())
    assert (after["model"]["d_model"], after["trainer"]["max_steps"]) == (12, 2)
    before["model"]["d_model"] = 12
    before["trainer"]["max_steps"] = 2
    assert after == before
    assert "model.d_model=16" not in yaml.safe_load((folder_of(done) / "overrides.yaml").read_text())


@pytest.mark.slow
def test_rerun_repeats_every_number(finished: Path, home: Path) -> None:
    done = command(home, "rerun", str(finished))
    assert done.returncode == 0, done.stderr
    assert states_equal(finished, folder_of(done))


def test_a_preempted_run_resumes_bit_for_bit(finished: Path, home: Path) -> None:
    process = start(home, "name=stopped", "seed=3")
    stop_at(process, home / "outputs" / "stopped", step=2)
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 75, stderr
    folder = Path(stdout.splitlines()[-1].removeprefix("run: "))
    assert json.loads((folder / "summary.json").read_text())["status"] == "preempted"
    done = command(home, "resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert folder_of(done) == folder
    assert states_equal(finished, folder)


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(finished: Path, home: Path) -> None:
    process = start(home, "name=killed", "seed=3")
    stop_at(process, home / "outputs" / "killed", step=5, number=signal.SIGKILL)
    process.communicate(timeout=100)
    folder = next((home / "outputs" / "killed").iterdir())
    done = command(home, "resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert states_equal(finished, folder)


def test_a_run_that_fails_says_why(home: Path) -> None:
    done = train(home, "name=nan", "optimizer.lr=1e30", "trainer.gradient_clip=null")
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in done.stderr
    folder = folder_of(done)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["error"].split(":")[0] in lines[0]
    assert "Traceback" in (folder / "log.txt").read_text()


@pytest.mark.slow  # tests/training compares gradients of two ranks
def test_two_ranks_end_where_one_does(finished: Path, home: Path) -> None:
    done = train(home, "name=two", "seed=3", "trainer.devices=2", "model.dropout=0", "trainer.max_steps=3")
    assert done.returncode == 0, done.stderr
    one = train(home, "name=one", "seed=3", "model.dropout=0", "trainer.max_steps=3")
    assert one.returncode == 0, one.stderr
    a, b = (read_checkpoint(folder_of(run) / "checkpoints" / "last.ckpt")["state_dict"] for run in (done, one))
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=0, atol=2e-5)
    final = [json.loads((folder_of(run) / "summary.json").read_text())["final"] for run in (done, one)]
    assert final[0]["test/loss"] == pytest.approx(final[1]["test/loss"], rel=1e-5)
    assert final[0]["test/exact_match"] == final[1]["test/exact_match"]


def states_equal(a: Path, b: Path) -> bool:
    """Whether two runs ended with bitwise the same weights, optimizer state and test figures."""
    one, two = (read_checkpoint(folder / "checkpoints" / "last.ckpt") for folder in (a, b))
    final = [json.loads((folder / "summary.json").read_text())["final"] for folder in (a, b)]
    return _equal(one["state_dict"], two["state_dict"]) and _equal(
        one["optimizer_states"], two["optimizer_states"]
    ) and final[0] == final[1]  # fmt: skip


def _equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(_equal, a, b))
    return a == b


@pytest.mark.slow
def test_torchrun_starts_the_ranks(home: Path) -> None:
    words = (*TINY, "name=torchrun", "model.dropout=0", "trainer.max_steps=2")
    line = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", str(TRAIN), *words)
    done = train(home, command=line)
    assert done.returncode == 0, done.stderr
    folder = folder_of(done)
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name], "one run, not one a rank"
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["devices"] == 2
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("words", [["train"], pytest.param(["resume"], marks=pytest.mark.slow)])
def test_srun_starts_the_ranks_on_one_port(words: list[str], home: Path) -> None:
    """Two processes with the variables of a step of two tasks, and no word on how many there are on each machine."""
    if words == ["resume"]:
        process = start(home, "name=srun", "trainer.devices=2", "model.dropout=0")
        stop_at(process, home / "outputs" / "srun", step=2)
        process.communicate(timeout=100)
        line = (*COMMAND, "resume", str(next((home / "outputs" / "srun").iterdir())))
    else:
        line = (sys.executable, str(TRAIN), *TINY, "name=step", "model.dropout=0", "trainer.max_steps=2")
    step = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NTASKS": "2",
        "SLURM_NODEID": "0",
        "SLURM_JOB_ID": "7",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "RANK": "0",
    }
    ranks = [
        subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=home,
            env={**environment(), **step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank},
        )
        for rank in "01"
    ]
    said = [process.communicate(timeout=200) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert said[0][0].splitlines()[-1].startswith("run: ")
    assert "run: " not in said[1][0]
    folder = Path(said[0][0].splitlines()[-1].removeprefix("run: "))
    config = yaml.safe_load((folder / "config.yaml").read_text())["trainer"]
    assert (config["devices"], config["num_nodes"]) == (2, 1)
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"


def test_a_script_under_sbatch_waits_for_nobody(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0"), ("SLURM_JOB_ID", "7")):
        monkeypatch.setenv(name, value)
    done = train(home, "name=batch", "trainer.max_steps=1")
    assert done.returncode == 0, done.stderr


def test_a_users_own_folder_and_package(finished: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "conf" / "scheduler").mkdir(parents=True)
    (tmp_path / "conf" / "scheduler" / "mine.yaml").write_text("_target_: own_package.Mine\nlevel: 0.5\n")
    (tmp_path / "own_package.py").write_text(
        "class Mine:\n    def __init__(self, level): self.level = level\n"
        "    def __call__(self, update, total): return self.level\n"
    )
    words = ("--config-dir", str(tmp_path / "conf"), "scheduler=mine", "name=own", "trainer.max_steps=1")
    refused = train(home, *words)
    assert refused.returncode == 2
    assert "trust=[own_package]" in refused.stderr
    line = (sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {CALL}", *TINY, *words)
    done = train(home, command=(*line, "trust=[own_package]"))
    assert done.returncode == 0, done.stderr
    folder = folder_of(done)
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["lr_schedulers"]
    refused = command(home, "resume", str(folder))
    assert refused.returncode == 2
    assert "own_package" in refused.stderr, "the run's own file cannot say what is trusted"
