"""`triform plan`: what a run or a sweep will be, without writing anything."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.run.tiny import folder_of, train
from triform.analysis.anatomy import MIB
from triform.commands import main
from triform.models.cost import count_parameters, flops_per_token
from triform.run.compose import compose
from triform.run.errors import BadInput
from triform.run.folder import RunFolder, read_overrides
from triform.run.job import checked, settled
from triform.run.jobs import jobs, staged
from triform.run.parts import parts
from triform.sweeps.ahead import branches, foreseen

DATES = ("data.n_train=60", "data.n_validation=9", "data.n_test=7", "data.batch_size=4", "logger=csv")
SMALL = ("model.d_model=24", "model.n_heads=2", "model.n_layers=1", "model.d_ff=40")
GIVEN = ("--flops", "2e9", "--mfu", "0.25")


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    found = json.loads(plan(capsys, "--json", *GIVEN, *words))
    assert isinstance(found, list)
    return found


def test_a_run_is_planned_as_it_will_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = (*DATES, *SMALL, f"paths.outputs={tmp_path}", "trainer.max_steps=37", "trainer.max_epochs=null")
    config = settled(compose(words))
    made = parts(config, checked(config))
    model, order = made.model_factory(), made.data.order
    (found,) = figures(capsys, *words)
    assert found["parameters"] == count_parameters(model)
    assert found["flops_per_token"] == flops_per_token(model, config["data"]["seq_len"])
    assert found["effort"] == {"steps": 37, "tokens": order.tokens_in(37), "is_exact": True, "hours": None}
    assert found["flops"] == found["tokens"] * found["flops_per_token"]
    assert found["hours"] == pytest.approx(found["flops"] / (2e9 * 0.25) / 3600)
    assert found["memory"]["weights"] == 4 * found["parameters"]
    assert found["notes"] == []


def test_it_says_what_the_run_then_does(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    done = train(tmp_path, "model=decoder", "match=params", "match.to=9000")
    summary = json.loads((folder_of(done) / "summary.json").read_text())
    words = read_overrides(RunFolder(folder_of(done)))
    (found,) = figures(capsys, *words, f"paths.outputs={tmp_path / 'outputs'}")
    assert found["parameters"] == summary["parameters"]
    assert found["flops_per_token"] == summary["flops_per_token"]
    assert 0.9 * summary["tokens"] < found["tokens"] < summary["tokens"]  # which has the task's marks as well
    assert found["effort"]["steps"] == summary["steps"]
    assert found["difference"] == summary["match"]["difference"]


def test_data_that_is_not_prepared_is_assumed_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = plan(capsys, *DATES, *SMALL, *GIVEN, "trainer.max_steps=3")
    assert "256 tokens assumed; model.vocab_size=N sets it" in shown
    assert "<= 3 steps, ~ 1,536 tokens" in shown  # 2 sides of 4 rows of 64 tokens each
    assert "every row is taken for full" in shown
    assert not list(tmp_path.iterdir())
    shown = plan(capsys, *DATES, *SMALL, *GIVEN, "trainer.max_steps=null", "trainer.max_epochs=2")
    assert "? steps, ? tokens, ? FLOPs" in shown
    assert "time             unknown" in shown


def test_more_devices_than_are_here_share_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*DATES, *SMALL, "data.batch_size=96", "trainer.max_steps=300", "trainer.accelerator=gpu")
    (one,) = figures(capsys, *words, "trainer.precision=bf16-mixed")
    words = (*words, "trainer.num_nodes=4", "trainer.accumulate=3")
    (many,) = figures(capsys, *words, "trainer.precision=bf16-mixed", "--devices", "8")
    assert (one["devices"], many["devices"]) == (1, 32)
    assert (one["rows"], many["rows"]) == (96, 1)
    assert many["hours"] == pytest.approx(one["hours"] / 32)
    assert many["memory"]["weights"] == one["memory"]["weights"]
    assert many["memory"]["logits"] == one["memory"]["logits"] / 96
    (true,) = figures(capsys, *words, "trainer.precision=bf16-true")
    assert true["memory"]["weights"] == many["memory"]["weights"] / 2


def test_a_limit_in_hours_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = (*DATES, *SMALL, f"paths.outputs={tmp_path}", "trainer.max_epochs=null")
    checked(settled(compose(words)))
    (free,) = figures(capsys, *words, "trainer.max_steps=400")
    (short,) = figures(capsys, *words, "trainer.max_steps=400", f"trainer.max_hours={free['hours'] / 4}")
    assert short["hours"] == free["hours"] / 4
    assert short["tokens"] == pytest.approx(free["tokens"] / 4, abs=1)
    (until,) = figures(capsys, *words, "match=seconds", "match.to=60", "trainer.max_steps=400")
    assert until["hours"] == pytest.approx(1 / 60)
    assert until["effort"]["steps"] is None


def test_a_sweep_is_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = (*DATES, f"paths.outputs={tmp_path}", "model=decoder,encoder_decoder", "seed=0,1,2", "match=params")
    found = figures(capsys, "-m", *words, "match.to=60000", "model.d_model=24", "model.n_layers=1")
    assert [one["varied"] for one in found] == [
        f"model={model} seed={seed}" for model in ("decoder", "encoder_decoder") for seed in range(3)
    ]
    assert len({one["parameters"] for one in found}) == 2
    assert all(one["parameters"] == pytest.approx(60000, rel=0.01) for one in found)
    shown = plan(capsys, "-m", *GIVEN, *words, "match.to=60000", "model.d_model=24", "model.n_layers=1")
    assert "model=encoder_decoder seed=2" in shown
    assert f"model.d_ff={found[0]['matched'].split(':')[0].split('=')[1]}" in shown
    assert "6 runs, " in shown
    assert shown.count("256 tokens assumed") == 1


def test_what_cannot_work_is_named_and_the_others_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-m", *GIVEN, *DATES, "model.n_heads=4,5", "seed=0,1", "model.d_ff=40"]) == 2
    shown = capsys.readouterr()
    assert "n_heads=4 seed=1" in shown.out
    assert "n_heads=5" not in shown.out
    (line,) = shown.err.splitlines()
    assert "d_model=128 is not a multiple of n_heads=5" in line
    assert line.endswith("(in the run with model.n_heads=5 seed=0, and 1 more)")


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["model.d_ff=x"], "model.d_ff=x is not a whole number"),
        (["model=decodr"], "did you mean 'decoder'?"),
        (["data.seq_len=300"], "data.seq_len=300 is beyond model.max_seq_len=256"),
        (["data=text", "data.train_files=nowhere.txt"], "nowhere.txt"),
        (["model=encoder"], "does not train model=encoder"),
        (["trainer.devices=0"], "trainer.devices=0 is not a whole number"),
        (["--memory", "0.001"], "memory: "),
        (["--mfu", "1.5"], "--mfu 1.5: set it to a number above 0 and at most 1"),
        (["--flops", "-1"], "--flops -1: set it to a number above 0"),
        (["--devices", "0"], "--devices 0: set it to a number at least 1"),
        (["match=params", "match.to=10"], "the nearest, model.d_ff=1, has"),
        (["model.d_ff=4,8"], "add -m to run each of them"),
        (["-m", "model.d_ff=range(5,5)"], "no value; give model.d_ff at least one"),
        (["-m", "model.d_ff"], "cannot be read as key=value"),
        (["--flop", "1"], "--flop"),
    ],
)
def test_bad_input_is_one_line(words: list[str], fragment: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = () if "--flops" in words else GIVEN
    assert main(["plan", *given, *words]) == 2
    said = capsys.readouterr().err
    assert fragment in said
    assert said.count("\n") == 1


def test_the_jobs_of_a_command_line() -> None:
    assert [(one.overrides, one.varied) for one in jobs(["a=1,2", "b=3"], False)] == [(["a=1,2", "b=3"], "")]
    found = jobs(["a=1,x", "b=3", "c=range(2)", "hydra/launcher=slurm", "hydra.sweeper.n=3", "~d"], True)
    assert [one.varied for one in found] == ["a=1 c=0", "a=1 c=1", "a=x c=0", "a=x c=1"]
    assert found[1].overrides == ["a=1", "b=3", "c=1", "~d"]
    ends = jobs(["optimizer.lr=tag(log,interval(1e-5,1e-2))", "n=int(interval(2,9))"], True)
    assert [one.varied for one in ends] == [f"optimizer.lr={lr} n={n}" for lr in ("1e-05", "0.01") for n in (2, 9)]
    assert [one.overrides for one in jobs(["a=1,2", "a=3"], True)] == [["a=3"]]
    (one, _) = jobs(["seed=0,1", "match.to=model=decoder model.d_ff=7"], True)
    assert one.overrides[1] == "match.to='model=decoder model.d_ff=7'"


def test_variants_that_are_tuned_are_planned_with_their_trials() -> None:
    key = "optimizer.lr"
    found = staged(["model=a,b", "seed=0,1", f"compare.tune={key}", "compare.trials=3"])
    assert [job.varied for job in found] == [
        *(f"model={model} trial {number} of 3" for model in "ab" for number in (1, 2, 3)),
        *(f"model={model} seed={seed} at its best {key}" for model in "ab" for seed in (0, 1)),
    ]
    assert found[4].overrides == ["model=b", "seed=0", f"compare.tune={key}", "compare.trials=3"]
    typed = staged([f"{key}=1,2,3", "model=a,b", f"compare.tune={key}"])
    assert [job.varied for job in typed] == [
        *(f"model={model} {key}={value} trial" for model in "ab" for value in (1, 2, 3)),
        *(f"model={model} at its best {key}" for model in "ab"),
    ]
    assert typed[2].overrides[:2] == [f"{key}=3", "model=a"]
    ranged = staged([f"{key}=interval(1,2)", f"compare.tune={key}", "seed=0,1"])
    assert len(ranged) == 7 + 2
    assert staged(["seed=0,1"]) == jobs(["seed=0,1"], True)
    with pytest.raises(BadInput, match=r"compare\.trials=few is no whole number of at least 2"):
        staged([f"compare.tune={key}", "compare.trials=few"])


def test_memory_is_refused_by_the_gibibyte(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = figures(capsys, *DATES, *SMALL)
    need = found["memory"]["total"] / 1024 / MIB
    assert main(["plan", *GIVEN, *DATES, *SMALL, "--memory", str(need * 1.01)]) == 0
    assert main(["plan", *GIVEN, *DATES, *SMALL, "--memory", str(need * 0.99)]) == 2


LLAMA = (
    *("model=llama3_8b", "task=causal_lm", "data=text", "data.train_files=none.txt", "experiment=none"),
    *("optimizer=adamw", "data.seq_len=4096", "data.batch_size=256", "trainer.accelerator=gpu"),
    *("trainer.max_steps=100", "trainer.max_epochs=null", "--flops", "9.89e14"),
)
LLAMA_PARAMETERS = 8_030_261_248


def test_eight_billion_parameters_on_64_and_512_gpus(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("none.txt").write_text("a text\n" * 90)
    rates = ("--link", "4.5e11", "--network", "5e10")
    fsdp = (*LLAMA, "trainer=fsdp", "trainer.devices=8", "trainer.num_nodes=8")
    (one,) = json.loads(plan(capsys, "--json", *fsdp))
    memory = one["memory"]
    assert (one["devices"], one["rows"], one["precision"]) == (64, 4, "bf16-mixed")
    assert memory["weights"] == memory["gradients"] == LLAMA_PARAMETERS * 4 // 64, "each axis 0 is a multiple of 64"
    assert memory["optimizer"] == pytest.approx(2 * memory["weights"], rel=1e-3)
    block, outside = 218_112_000, 2 * 128_256 * 4096 + 4096
    assert memory["gathered"] == 4 * 2 * outside + 2 * 3 * block, "blocks in bfloat16"
    assert one["traffic"]["data"] == 63 * (4 * outside + 2 * 2 * 32 * block + 4 * LLAMA_PARAMETERS) // 64
    assert 0 < one["checkpointed"] < memory["activations"] / 5
    assert one["mfu"] == 0.4, "communication is taken to be free"
    (slow,) = json.loads(plan(capsys, "--json", *fsdp, "--network", "2e9"))
    assert slow["step_seconds"] == slow["traffic"]["data"] / 2e9 > one["step_seconds"]
    assert slow["hours"] / one["hours"] == pytest.approx(slow["step_seconds"] / one["step_seconds"])
    assert slow["mfu"] == pytest.approx(0.4 * one["step_seconds"] / slow["step_seconds"])

    (block,) = json.loads(plan(capsys, "--json", *fsdp, "trainer.activation_checkpointing=block"))
    assert block["memory"]["activations"] == one["checkpointed"]
    assert block["mfu"] == pytest.approx(0.3), "a third more work, which counts for nothing"
    (kept,) = json.loads(plan(capsys, "--json", *fsdp, "trainer.activation_checkpointing=selective"))
    assert block["memory"]["activations"] < kept["memory"]["activations"] < one["memory"]["activations"]

    words = (*LLAMA, "trainer=fsdp_tp", "trainer.devices=8", "trainer.num_nodes=64", "trainer.tensor_parallel=8")
    (many,) = json.loads(plan(capsys, "--json", *words, *rates))
    assert (many["devices"], many["rows"]) == (512, 4), "64 groups of 8 read different rows"
    assert many["traffic"]["tensor"] == 2 * 2 * 7 * 4 * 4096 * 2 * 32 * 4096 * 2 // 8
    compute = 4 * 4096 * one["flops_per_token"] / 8 / (9.89e14 * 0.4)
    assert many["step_seconds"] == pytest.approx(
        max(compute, many["traffic"]["data"] / 5e10) + many["traffic"]["tensor"] / 4.5e11
    )
    shown = plan(capsys, *words, *rates)
    assert "which holds 1/64 of its 1/8 of the layers" in shown
    assert "torchrun --nnodes=64 --nproc-per-node=8" in shown
    assert "triform submit model=llama3_8b" in shown
    assert main(["plan", *words, "trainer.tensor_parallel=3"]) == 2
    assert "tensor_parallel=3 does not divide the 512 ranks" in capsys.readouterr().err
    assert main(["plan", *words, "trainer.tensor_parallel=64"]) == 2
    assert "n_heads=32 is not a multiple of trainer.tensor_parallel=64" in capsys.readouterr().err


def test_a_search_is_planned_at_the_corners_and_the_middle_of_its_space(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "search").mkdir(parents=True)
    file = tmp_path / "own" / "search" / "heads.yaml"
    file.write_text("# @package hydra.sweeper\nspace:\n  model.n_heads: choice(2, 5)\n")
    words = ("--config-dir", "own", "-m", "search=heads", "hydra.sweeper.n_trials=17", *DATES, "model.d_model=24")
    assert main(["plan", *GIVEN, *words, "model.n_layers=1", "trainer.max_steps=3"]) == 2
    shown = capsys.readouterr()
    assert "The space is checked at 1 point: its corners" in shown.out
    assert "17 runs, " in shown.out
    assert "d_model=24 is not a multiple of n_heads=5" in shown.err
    assert shown.err.endswith("(in the run with model.n_heads=5)\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["own"]
    runs, trials = foreseen(["search=small", "seed=3", "hydra/launcher=slurm", "model.dropout=0.3"], [])
    assert trials == 20
    assert runs[0].overrides[:2] == ["seed=3", "model.dropout=0.3"]
    assert runs[0].varied == "optimizer=adamw optimizer.lr=0.00173205"
    assert len(runs) == 3 + 5


def test_the_jobs_of_a_list_and_those_drawn_at_random_are_planned(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "jobs"
    file.write_text("model.d_model=24 model.n_heads=2\n\n# none\nmodel.d_model=36 model.n_heads=3\n")
    listed = ("hydra/sweeper=list", f"hydra.sweeper.file={file}")
    found = figures(capsys, "-m", *DATES, *SMALL[2:], *listed, "seed=0,1")
    lines = ("model.d_model=24 model.n_heads=2", "model.d_model=36 model.n_heads=3")
    assert [one["varied"] for one in found] == [f"{line} seed={seed}" for line in lines for seed in (0, 1)]
    assert len({one["parameters"] for one in found}) == 2
    assert main(["explain", "model.d_model", "-m", *listed]) == 0
    assert "model.d_model=36" in capsys.readouterr().out
    tuned, _ = foreseen([*listed, "compare.tune=optimizer.lr", "compare.trials=2"], [])
    assert [job.varied for job in tuned] == [
        f"{line} {end}" for line in lines for end in ("trial 1 of 2", "trial 2 of 2", "at its best optimizer.lr")
    ]
    words = ["hydra/sweeper=random", "hydra.sweeper.n_jobs=3", "optimizer.lr=interval(1,2)", "seed=5"]
    drawn, _ = foreseen(words, [])
    assert [job.overrides[0] for job in drawn] == ["seed=5"] * 3
    assert len({job.varied for job in drawn}) == 3
    assert foreseen(words, [])[0] == drawn
    assert [job.varied for job in branches(words, [])] == ["optimizer.lr=1", "optimizer.lr=2"]


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["search=smal"], "did you mean 'small'?"),
        (["search=none", "hydra/sweeper=optuna"], "the space is empty"),
        (["search=small", "hydra.sweeper.pruner=medan"], "did you mean 'median'?"),
        (["search=small", "hydra.sweeper.n_trials=0"], "hydra.sweeper.n_trials=0 is no whole number"),
        (["search=small", "hydra/sweeper=grid"], "hydra/sweeper=grid asks for no space"),
        (["search=small", "compare.tune=optimizer.lr"], "compare.tune=optimizer.lr is a search already"),
        (["hydra/sweeper=list"], "hydra.sweeper.file is not set"),
        (["hydra/sweeper=list", "hydra.sweeper.file=absent"], "hydra.sweeper.file=absent cannot be read"),
        (["hydra/sweeper=random", "seed=0"], "hydra/sweeper=random: no key has a range"),
        (["optimizer.lr=interval(1,2)", "hydra/sweeper=random", "compare.tune=seed"], "leave hydra/sweeper=random out"),
    ],
)
def test_a_sweep_that_cannot_run_is_refused(
    words: list[str], fragment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *GIVEN, "-m", *DATES, *words]) == 2
    said = capsys.readouterr().err
    assert fragment in said
    assert said.count("\n") == 1
