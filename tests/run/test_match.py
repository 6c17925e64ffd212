"""`match`: variants that agree in parameters, FLOPs, tokens or seconds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.run.tiny import folder_of, train
from triform.data.prepare import Prepared
from triform.models.cost import count_parameters, flops_per_token
from triform.run.compose import compose
from triform.run.folder import RunFolder
from triform.run.job import checked, created, settled
from triform.run.match import matched, nearest_size, said, step_of
from triform.run.parts import parts
from triform.run.recipe import with_recipe
from triform.tasks.objective import Batch

DATES = ("data.n_train=60", "data.n_validation=9", "data.n_test=7", "data.batch_size=4", "logger=csv")
SMALL = ("model.d_model=24", "model.n_heads=2", "model.n_layers=3", "model.d_ff=40")
FAMILIES = ("encoder_decoder", "decoder")


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The matched config of a command line."""

    def make(*words: str) -> dict[str, Any]:
        words = (*DATES, *SMALL, f"paths.outputs={tmp_path}", *words)
        return matched(settled(compose(words)), words)

    return make


def model_of(config: dict[str, Any], prepared: Prepared | None = None) -> Any:
    with torch.device("meta"):
        return parts(config, checked(config) if prepared is None else prepared).model_factory()


@pytest.mark.parametrize("free", ["d_ff", "[d_model,d_ff]", "[n_layers,d_ff]"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_models_parameters_are_as_many_as_asked_for(own: Callable[..., Any], family: str, free: str) -> None:
    config = own(f"model={family}", "match=params", "match.to=60000", f"match.free={free}")
    n = count_parameters(model_of(config))
    result = config["match"]["result"]
    assert n == pytest.approx(60000, rel=0.01)
    assert (result["wanted"], result["reached"]) == (60000, n)
    assert result["difference"] == pytest.approx(n / 60000 - 1)
    assert all(config["model"][key.removeprefix("model.")] == value for key, value in result["set"].items())
    for size in (-1, 1):  # the nearest of all
        other = {**config, "model": config["model"] | {"d_ff": config["model"]["d_ff"] + size}}
        assert abs(count_parameters(model_of(other)) - 60000) >= abs(n - 60000)


@pytest.mark.parametrize("family", FAMILIES)
def test_its_flops_are_those_of_the_baseline(own: Callable[..., Any], family: str) -> None:
    base = own("model=decoder", "model.d_model=28")
    config = own(f"model={family}", "match=flops", "match.to=model=decoder model.d_model=28")
    length = config["data"]["seq_len"]
    wanted = flops_per_token(model_of(base), length)
    assert config["match"]["result"]["wanted"] == wanted
    assert flops_per_token(model_of(config), length) == pytest.approx(wanted, rel=0.01)


def test_the_baseline_itself_is_left_as_it_is(own: Callable[..., Any]) -> None:
    words = ("model/attention=grouped_query", "model.n_kv_heads=1")
    config = own(*words, "match=params", f"match.to={' '.join(words)}")
    assert config["model"] == own(*words)["model"]
    assert config["match"]["result"]["difference"] == 0


def test_a_baseline_has_what_was_typed_for_the_run(own: Callable[..., Any]) -> None:
    """But for the keys that it names itself."""
    config = own("model.n_layers=1", "model.d_ff=99", "match=params", "match.to=model.d_ff=77")
    assert config["model"]["d_ff"] == 77
    assert config["model"]["n_layers"] == 1


def test_widths_are_multiples_of_what_is_asked_for_and_of_the_heads(own: Callable[..., Any]) -> None:
    words = ("match=params", "match.to=60000", "match.multiple_of=4", "match.within=0.3")
    assert own(*words)["model"]["d_ff"] % 4 == 0
    config = own("model=decoder", "model.n_heads=3", *words, "match.free=d_model")
    assert config["model"]["d_model"] % 12 == 0
    assert step_of({"n_heads": 6, "head_dim": None}, "d_model", 4) == 12
    assert step_of({"n_heads": 6, "head_dim": 16}, "d_model", 4) == 4
    two = {"n_heads": 6, "head_dim": None, "encoder": {"n_heads": 4, "head_dim": None}, "decoder": {"head_dim": 8}}
    assert step_of(two, "d_model", 1) == 4
    assert step_of(two, "n_layers", 8) == 1


def test_heads_of_rotated_pairs_double_the_step(own: Callable[..., Any]) -> None:
    config = own("model=decoder", "match=params", "match.to=60000", "match.free=d_model", "match.within=0.3")
    assert config["model"]["d_model"] % 4 == 0
    model_of(config)


def test_a_stack_of_its_own_size_keeps_it(own: Callable[..., Any]) -> None:
    config = own("model.encoder.d_ff=64", "match=params", "match.to=60000")
    assert config["model"]["encoder"]["d_ff"] == 64
    assert count_parameters(model_of(config)) == pytest.approx(60000, rel=0.01)


@pytest.mark.parametrize("wanted", [0, 1, 9, 10, 11, 5_000, 1e7, 3e9])
def test_the_nearest_size_is_found_in_few_steps(wanted: float) -> None:
    for count in (lambda n: 3 * n + 7, lambda n: 2 * n * n + 5 * n, lambda n: 12 * (n // 6) + n**1.5):
        tried = []

        def counted(n: int, count: Callable[[int], float] = count, tried: list[int] = tried) -> float:
            tried.append(n)
            return count(n)

        size, reached = nearest_size(counted, start=40, step=4, wanted=wanted, most=10**6)
        assert size % 4 == 0
        assert reached == count(size)
        nearest = min(
            (n for n in (size - 4, size, size + 4) if 0 < n <= 4 * 10**6), key=lambda n: abs(count(n) - wanted)
        )
        assert abs(reached - wanted) == abs(count(nearest) - wanted)
        assert len(tried) <= 20


def test_a_count_by_the_book_takes_five_models() -> None:
    tried = []
    nearest_size(lambda n: tried.append(n) or 12 * n * n + 300 * n + 7000, 128, 8, 1e8, 10**6)
    assert len(tried) <= 6


def test_tokens_are_those_of_the_baselines_steps(own: Callable[..., Any]) -> None:
    config = own("match=tokens", "match.to=trainer.max_steps=20 trainer.max_epochs=null")
    trainer = config["trainer"]
    assert [trainer[key] for key in ("max_steps", "max_epochs", "max_hours")] == [None] * 3
    order = parts(config, checked(config)).data.order
    assert trainer["max_tokens"] == sum(int(order.lengths[order.batch(step)[1]].sum()) for step in range(20))
    assert order.steps_for_tokens(trainer["max_tokens"]) == 20
    assert config["match"]["result"]["difference"] == 0
    half = own("match=tokens", "match.to=trainer.max_steps=20", "data.batch_size=2")
    assert parts(half, checked(half)).data.order.steps_for_tokens(trainer["max_tokens"]) == pytest.approx(40, abs=2)


def test_seconds_are_the_limit_that_schedules_know(own: Callable[..., Any]) -> None:
    config = own("match=seconds", "match.to=90", "trainer.max_steps=3")
    assert config["trainer"]["max_hours"] == 90 / 3600
    assert [config["trainer"][key] for key in ("max_steps", "max_epochs", "max_tokens")] == [None] * 3
    assert own("match=seconds", "match.to=trainer.max_hours=0.5")["trainer"]["max_hours"] == 0.5


def test_a_run_is_a_baseline(own: Callable[..., Any]) -> None:
    other = own("data.batch_size=3", "trainer.max_epochs=2")
    folder = created(other, [], checked(other))
    known = {"status": "finished", "parameters": 50_000, "flops_per_token": 2e5, "steps": 31, "seconds": 12.5}
    folder.summary.write_text(json.dumps(known))
    for by, wanted in (("params", 50_000), ("flops", 2e5), ("seconds", 12.5)):
        result = own(f"match={by}", f"match.to={folder.path}")["match"]["result"]
        assert result["wanted"] == wanted
    order = parts(other, checked(other)).data.order
    read = sum(int(order.lengths[order.batch(step)[1]].sum()) for step in range(31))
    assert own("match=tokens", f"match.to={folder.path}")["trainer"]["max_tokens"] == read
    folder.summary.write_text(json.dumps(known | {"status": "running"}))
    with pytest.raises(ValueError, match="the run has not finished, its tokens are not known"):
        own("match=tokens", f"match.to={folder.path}")
    folder.summary.write_text("{}")
    with pytest.raises(ValueError, match=r"its summary\.json has no parameters"):
        own("match=params", f"match.to={folder.path}")


def test_a_baseline_from_elsewhere_is_named_by_its_whole_path(
    own: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own()
    folder = created(config, [], checked(config))
    folder.summary.write_text(json.dumps({"parameters": 60_000}))
    monkeypatch.chdir(folder.path.parent)
    assert own("match=params", f"match.to={folder.path.name}")["match"]["to"] == str(folder.path)


def test_variants_start_from_the_same_weights_and_read_the_same_rows(own: Callable[..., Any]) -> None:
    to = ("match=params", "match.to=model.n_kv_heads=4", "model.n_heads=4", "seed=3")
    made = []
    for n_kv_heads in (4, 2):
        config = own("model=decoder", f"model.n_kv_heads={n_kv_heads}", *to)
        built = parts(config, checked(config))
        model = built.model_factory()
        model.initialise(config["seed"])
        made.append((dict(model.named_parameters()), built.data))
    (first, one), (second, two) = made
    assert list(first) == list(second)
    shared = [name for name in first if first[name].shape == second[name].shape]
    assert {name.split(".")[-2] for name in first} - {name.split(".")[-2] for name in shared} == {
        *("k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
    }
    assert all(torch.equal(first[name], second[name]) for name in shared)
    for step in range(40):
        assert list(one.order.batch(step)[1]) == list(two.order.batch(step)[1])
    one.total_steps = two.total_steps = 2
    batches: list[list[Batch]] = [list(data.train_dataloader()) for data in (one, two)]
    for ours, theirs in zip(*batches, strict=True):
        assert torch.equal(ours["input_ids"], theirs["input_ids"])


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["match=params"], "match.to has no value"),
        (["match.to=1"], "it belongs to match=flops, match=params"),
        (["match=params", "match.to=-3"], "match.to=-3 is not above 0"),
        (["match=params", "match.to=true"], "match.to=True is no number"),
        (["match=params", "match.to=nowhere"], "match.to=nowhere is no run: there is no such folder"),
        (["match=params", "match.to=model=decodr"], "(in the run of match.to=model=decodr)"),
        (["match=params", "match.to=model.n_heads=5"], "n_heads=5"),
        (["match=params", "match.to=9e4", "match.free=width"], "match.free=width: name a size"),
        (["match=params", "match.to=9e4", "match.free=[]"], "match.free=[] names no size"),
        (["match=params", "match.to=9e4", "match.free=d_f"], "did you mean 'd_ff'?"),
        (["match=params", "match.to=9e4", "match.multiple_of=0"], "match.multiple_of=0"),
        (["match=params", "match.to=9e4", "match.within=1.5"], "match.within=1.5"),
        (["match=params", "match.to=9e4", "+match.of=1"], "match.of: no such key"),
        (["match=params", "match.to=10"], "the nearest, model.d_ff=1, has"),
        (["match=params", "match.to=61000", "match.free=n_layers"], "set match.free=[n_layers,d_ff]"),
        (
            ["match=params", "match.to=9e4", "model.encoder.d_ff=9", "model.decoder.d_ff=9"],
            "match.free=d_ff reaches no stack",
        ),
        (["match=seconds", "match.to=model.d_ff=7"], "is not known before it has run"),
        (["match=tokens", "match.to=trainer.max_hours=1 trainer.max_epochs=null trainer.max_steps=null"], "not known"),
    ],
)
def test_what_cannot_be_matched_is_refused_in_a_line(
    own: Callable[..., Any], words: list[str], fragment: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (`fragment` is compared below, as it stands)
        own(*words)
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [path for path in tmp_path.iterdir() if path.name != ".cache"]


def test_overrides_in_an_override_need_no_quotes() -> None:
    assert with_recipe(["match.to=model=decoder model.d_ff=7"])[0] == "match.to='model=decoder model.d_ff=7'"
    assert with_recipe(["match.to='model=decoder'"])[0] == "match.to='model=decoder'"
    assert with_recipe(["match.to=1e6"])[0] == "match.to=1e6"
    assert (
        compose(["match=params", "match.to=model/attention=multi_head"])["match"]["to"] == "model/attention=multi_head"
    )


def test_a_runs_folder_says_what_was_matched(own: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    config = own("match=params", "match.to=60000")
    folder = created(config, [], checked(config))
    kept = folder.read_config()
    assert kept["model"]["d_ff"] == config["model"]["d_ff"] != 40
    assert kept["match"]["result"] == folder.read_summary()["match"] == config["match"]["result"]
    assert f"match: model.d_ff={kept['model']['d_ff']}: " in capsys.readouterr().err
    assert matched({**kept, "match": {"result": {}}}, [])["match"] == {}
    assert said(own()) is None


def test_a_run_trains_with_the_size_that_was_solved(tmp_path: Path) -> None:
    done = train(tmp_path, "match=params", "match.to=model=decoder model.d_ff=150", "trainer.devices=2")
    assert done.returncode == 0, done.stderr
    folder = RunFolder(folder_of(done))
    result, summary = folder.read_config()["match"]["result"], folder.read_summary()
    assert summary["match"] == result
    assert summary["parameters"] == result["reached"] == pytest.approx(result["wanted"], rel=0.01)
    assert summary["status"] == "finished"
    assert yaml.safe_load(folder.overrides.read_text())[-2] == "match.to=model=decoder model.d_ff=150"


def test_each_run_of_a_sweep_is_solved_by_itself(tmp_path: Path) -> None:
    done = train(tmp_path, "-m", "model=decoder,encoder_decoder", "match=params", "match.to=9000")
    assert done.returncode == 0, done.stdout + done.stderr
    folders = [RunFolder(path.parent) for path in sorted(tmp_path.rglob("config.yaml"))]
    sizes = {folder.read_config()["model"]["_target_"]: folder.read_config()["model"]["d_ff"] for folder in folders}
    assert len(folders) == len(set(sizes.values())) == 2
    for folder in folders:
        summary = folder.read_summary()
        assert summary["status"] == "finished"
        assert summary["parameters"] == summary["match"]["reached"] == pytest.approx(9000, rel=0.01)
