"""Which runs are one variant, and what it is called."""

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.compare.made import make_run
from triform.analysis.compare.gather import Entry, gather
from triform.analysis.compare.variants import Variant, differing, find, labels, short, shown, variants
from triform.analysis.runs import Run
from triform.run.errors import BadInput

CONFIG: dict[str, Any] = {"seed": 0, "name": "a", "model": {"d_model": 24}, "optimizer": {"lr": 0.003}, "logger": {}}


def entry(number: int, config: dict[str, Any], *overrides: str, status: str = "finished") -> Entry:
    run = Run(Path(f"/runs/{number}"), CONFIG | config, {"status": status}, {})
    return Entry(run.folder, overrides, status, None, run)


def test_seeds_names_paths_and_loggers_make_no_variant() -> None:
    entries = [
        entry(0, {}),
        entry(
            1, {"seed": 1, "name": "b", "logger": {"mode": "offline"}, "paths": {"outputs": "/b"}}, "seed=1", "name=b"
        ),
        entry(2, {"seed": 2, "trainer": {"log_interval": 5}, "match": {"by": "params"}}),
    ]
    (one,) = variants(entries)
    assert [run.config["seed"] for run in one.finished] == [0, 1, 2]
    assert one.label == "a"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["a.en", "a.de"], '["a.en", "a.de"]'),
        (["/data/multi30k/train.en.gz", "/data/multi30k/train.de.gz"], "[/data/multi30k/train.en.gz, +1]"),
        ("/home/somebody/models/pretrained/stories260K", "…/models/pretrained/stories260K"),
        ("a" * 33, "…" + "a" * 31),
        (0.00123456, "0.001235"),
    ],
)
def test_a_value_is_shown_short_and_never_cut_within_a_name(value: Any, expected: str) -> None:
    assert shown(value) == expected


def test_every_other_key_makes_one() -> None:
    group = variants([entry(0, {}), entry(1, {"model": {"d_model": 36}}), entry(2, {"optimizer": {"lr": 0.01}})])
    assert [len(variant.entries) for variant in group] == [1, 1, 1]
    assert differing(group) == ["model.d_model", "optimizer.lr"]


def test_a_seed_that_follows_the_runs_seed_makes_none() -> None:
    follows = [entry(i, {"seed": i, "data": {"seed": i}}) for i in range(3)]
    assert len(variants(follows)) == 1
    of_its_own = [entry(i, {"seed": i % 2, "data": {"seed": i // 2}}) for i in range(4)]
    assert len(variants(of_its_own)) == 2


def test_a_label_has_the_name_of_a_path_and_not_where_it_lies() -> None:
    paths = ["/home/a/models/one", "/home/a/models/two"]
    group = variants([entry(i, {"model": {"path": path}}, f"model.path={path}") for i, path in enumerate(paths)])
    assert [variant.label for variant in group] == ["path=one", "path=two"]


def test_labels_are_what_was_typed_otherwise() -> None:
    group = variants(
        [
            entry(0, {}, "model=decoder", "experiment=x", "seed=0", "logger=csv"),
            entry(1, {"model": {"d_model": 36}}, "model=decoder", "experiment=x", "model/norm@model.encoder.norm=rms"),
            entry(2, {"optimizer": {"lr": 0.01}}, "model=encoder", "experiment=x", "optimizer.lr=1e-2"),
        ]
    )
    assert [variant.label for variant in group] == [
        "model=decoder",
        "model=decoder encoder.norm=rms",
        "model=encoder lr=0.01",
    ]


def test_a_variant_of_which_nothing_was_typed_has_its_values_or_is_the_default() -> None:
    with_value = variants([entry(0, {}), entry(1, {"optimizer": {"lr": 0.01}}, "optimizer.lr=0.01")])
    assert [variant.label for variant in with_value] == ["lr=0.003", "lr=0.01"]
    of_a_group = variants([entry(0, {}), entry(1, {"model": {"norm": "rms"}}, "model/norm=rms")])
    assert [variant.label for variant in of_a_group] == ["default", "norm=rms"]


def test_what_was_typed_alike_is_told_apart_by_its_config() -> None:
    group = variants([entry(0, {}, "model=decoder"), entry(1, {"model": {"d_model": 36}}, "model=decoder")])
    assert [variant.label for variant in group] == ["d_model=24", "d_model=36"]


def test_no_two_labels_are_alike() -> None:
    long = "/data/" + "x" * 60
    group = [Variant({"data.file": f"{i}{long}"}, {}, [entry(i, {})]) for i in range(2)]
    assert len(set(labels(group))) == 2


def test_keys_are_as_short_as_tells_them_apart() -> None:
    assert short(["optimizer.lr", "model/attention", "model.encoder.d_ff", "model.decoder.d_ff"]) == {
        "optimizer.lr": "lr",
        "model/attention": "attention",
        "model.encoder.d_ff": "encoder.d_ff",
        "model.decoder.d_ff": "decoder.d_ff",
    }


def test_a_baseline_is_found_by_label_folder_or_value() -> None:
    group = variants(
        [entry(0, {}), entry(1, {"optimizer": {"lr": 0.01}}, "optimizer.lr=0.01"), entry(7, {"model": {"d_model": 36}})]
    )
    assert find(group, group[1].label) is group[1]
    assert find(group, "7") is group[2]
    assert find(group, "optimizer.lr=1e-2") is group[1]
    assert find(group, "lr=0.01") is group[1]
    assert find(group, "model.d_model=36") is group[2]
    with pytest.raises(BadInput, match=r"^--baseline lr=0\.02: no variant is called so or has this value.*there are '"):
        find(group, "lr=0.02")


def test_the_last_run_of_a_seed_counts() -> None:
    (one,) = variants([entry(0, {}), entry(1, {}), entry(2, {"seed": 1}, status="failed")])
    assert [run.folder.name for run in one.finished] == ["1"]


def test_runs_are_found_in_folders_sweeps_and_patterns(tmp_path: Path) -> None:
    sweep = tmp_path / "sweeps" / "a"
    for number in (0, 2, 10):
        make_run(sweep / str(number), 0.5, f"seed={number}")
    names = ["0", "2", "10"]
    for places in ([sweep], [tmp_path / "sweeps"], [f"{sweep}/*"], [sweep, sweep / "2"], [sweep / n for n in names]):
        assert [found.folder.name for found in gather(places)] == names
    assert gather([sweep / "2"])[0].overrides == ("seed=2",)


def test_a_manifest_tells_of_jobs_that_left_nothing(tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "0", 0.5, "seed=0")
    make_run(tmp_path / "a" / "1", 0.5, "seed=1", status="running")
    (tmp_path / "a" / "manifest.json").write_text(
        '{"jobs": [{"number": 0, "status": "running"}, {"number": 1, "status": "failed",'
        ' "error": "killed by SIGKILL", "where": "a.py:3"},'
        ' {"number": 2, "overrides": ["seed=2"], "status": "waiting"}]}'
    )
    assert [(found.folder.name, found.status, found.error) for found in gather([tmp_path / "a"])] == [
        ("0", "finished", None),
        ("1", "failed", "killed by SIGKILL (a.py:3)"),
        ("2", "waiting", None),
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"jobs": 3}', '{"jobs": [{"status": "failed"}]}'])
def test_a_manifest_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    make_run(tmp_path / "a" / "0", 0.5)
    (tmp_path / "a" / "manifest.json").write_text(text)
    assert [found.status for found in gather([tmp_path / "a"])] == ["finished"]


def test_places_without_runs_are_refused_in_one_line(tmp_path: Path) -> None:
    make_run(tmp_path / "dates" / "0", 0.5)
    with pytest.raises(BadInput, match=r"datse: no such folder \(did you mean 'dates'\?\); give runs"):
        gather([tmp_path / "datse"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"empty holds no run: no config\.yaml is in it or below"):
        gather([tmp_path / "empty"])
    with pytest.raises(BadInput, match=r"no folder was named"):
        gather([])


def test_sizes_that_were_solved_are_no_part_of_a_label() -> None:
    """They are in the configuration, and make a variant, but nobody chose them."""
    entries = []
    for number, (model, d_ff) in enumerate((("encoder", 57), ("decoder", 43), ("decoder", 43))):
        result = {"wanted": 1000.0, "reached": 999.0, "difference": -0.001, "set": {"model.d_ff": d_ff}}
        config = {"seed": number, "model": {"_target_": f"triform.{model}", "d_ff": d_ff}, "match": {"result": result}}
        entries.append(entry(number, config, f"model={model}", "model.d_ff=36", "match=params", f"seed={number}"))
    group = variants(entries)
    assert [variant.label for variant in group] == ["model=encoder", "model=decoder"]
    assert len(group[1].entries) == 2
    assert differing(group) == ["model._target_", "model.d_ff"]
