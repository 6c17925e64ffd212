"""What a comparison finds in run folders, and what the files of the report say."""

import csv
import io
import json
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from scipy import stats

from tests.analysis.compare.made import make_run, noise
from triform.analysis.compare import report
from triform.analysis.compare.axes import brief, plus_minus, ticks
from triform.analysis.compare.charts import COLOURS, charts, mean_curve
from triform.analysis.compare.columns import as_csv, as_latex, columns
from triform.analysis.compare.comparison import Comparison, compared
from triform.analysis.compare.figures import direction, figure
from triform.analysis.compare.gather import gather
from triform.analysis.compare.page import page
from triform.analysis.compare.samples import Sample, read_samples
from triform.analysis.compare.search import by_logarithm, importance
from triform.analysis.compare.statistics import estimate
from triform.analysis.report import as_text
from triform.analysis.runs import read_run
from triform.run.errors import BadInput
from triform.tasks.objective import Sample as Written

SEEDS = range(3)
HOSTILE = "<script>alert('x')</script> | `a` $b$ & \"c\"\nsecond line"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three variants of three seeds: the baseline, one clearly better and larger, one the same but for chance."""
    folder = tmp_path_factory.mktemp("outputs") / "sweeps" / "a"
    number = 0
    for lr, loss, parameters in ((0.003, 0.6, 1000), (0.01, 0.3, 1050), (0.03, 0.6, 1000)):
        for seed in SEEDS:
            own = float(np.random.default_rng(number).normal(0, 0.002))
            samples = [
                Written("2 May", f"05-0{lr > 0.02:d}", "05-01", lr > 0.02),
                Written(HOSTILE, HOSTILE, "x", False),
            ]
            make_run(
                folder / str(number),
                loss + noise(seed) + own,
                f"optimizer.lr={lr}",
                f"seed={seed}",
                parameters=parameters,
                samples=samples,
            )
            number += 1
    make_run(folder / "9", 2.0, "optimizer.lr=0.01", "seed=3", status="failed", error=f"ValueError: {HOSTILE}", steps=7)
    make_run(folder / "10", 2.0, "optimizer.lr=0.01", "seed=4", status="preempted", steps=7)
    return folder


@pytest.fixture(scope="module")
def found(sweep: Path) -> Comparison:
    return compared(gather([sweep]))


def test_rows_are_means_and_paired_differences(sweep: Path, found: Comparison) -> None:
    losses = {
        lr: [read_run(sweep / str(3 * i + seed)).summary["best"]["validation/loss"] for seed in SEEDS]
        for i, lr in enumerate((0.003, 0.01, 0.03))
    }
    assert found.rows[0].variant.label == "lr=0.01"
    by_label = {row.variant.label: row for row in found.rows}
    raw = {}
    for lr, values in losses.items():
        row = by_label[f"lr={lr}"]
        assert row.figure is not None
        assert row.figure.mean == pytest.approx(np.mean(values))
        assert row.figure.half == pytest.approx(stats.sem(values) * stats.t.ppf(0.975, 2))
        if lr != 0.003:
            expected = stats.ttest_rel(values, losses[0.003])
            assert row.difference is not None
            assert row.difference.p == pytest.approx(expected.pvalue)
            raw[lr] = expected.pvalue
    assert by_label["lr=0.003"].is_baseline
    assert by_label["lr=0.01"].p == pytest.approx(2 * min(raw.values()))
    assert by_label["lr=0.03"].p == pytest.approx(max(raw[0.03], 2 * min(raw.values())))
    assert [row.verdict for row in found.rows] == ["better", "", ""]


def test_sizes_are_beside_those_of_the_baseline(found: Comparison) -> None:
    row = found.rows[0]
    assert row.sizes["parameters"] == 1050
    assert row.relative["parameters"] == pytest.approx(0.05)
    assert row.sizes["flops"] == 50 * 20 * 6 * 1050
    (parameters,) = [column for column in columns(found) if column.heading == "parameters"]
    assert parameters.cells[0] == "1,050 (+5 %)"
    assert "1,000" in parameters.cells[1:]


def test_a_figure_of_which_more_is_better_is_ordered_so(sweep: Path) -> None:
    by_accuracy = compared(gather([sweep]), metric="accuracy", baseline="lr=0.01")
    assert (by_accuracy.metric.name, by_accuracy.metric.mode) == ("validation/accuracy", "max")
    assert by_accuracy.rows[0].variant.label == "lr=0.01"
    assert by_accuracy.rows[0].is_baseline
    assert {row.verdict for row in by_accuracy.rows[1:]} == {"worse"}


def test_the_run_says_what_it_is_judged_by(tmp_path: Path) -> None:
    for i, loss in enumerate((0.5, 0.2)):
        make_run(tmp_path / str(i), loss, f"optimizer.lr={i + 1}", monitor=("validation/accuracy", "max"))
    found = compared(gather([tmp_path]))
    assert (found.metric.name, found.metric.mode) == ("validation/accuracy", "max")
    assert [row.variant.label for row in found.rows] == ["lr=2", "lr=1"]


def test_a_sweep_is_judged_by_what_it_says(tmp_path: Path) -> None:
    for i, loss in enumerate((0.5, 0.2)):
        make_run(tmp_path / str(i), loss, f"optimizer.lr={i + 1}")
    manifest = '{"jobs": [], "monitor": {"name": "validation/accuracy", "mode": "max"}}'
    (tmp_path / "manifest.json").write_text(manifest)
    assert report([tmp_path]).comparison.metric.name == "validation/accuracy"
    (tmp_path / "manifest.json").write_text(manifest.replace("accuracy", "bleu"))  # which nobody logged
    assert report([tmp_path], metric=None).comparison.metric.name == "validation/loss"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two variants, tried at three learning rates each, then run with two seeds at the best one.

    One trial failed, and a run is of a learning rate that was best before that.
    """
    folder = tmp_path_factory.mktemp("tuned") / "sweeps" / "lr"
    jobs: list[dict[str, object]] = []

    def add(model: str, lr: str, seed: int, stage: str, loss: float, status: str = "finished", **more: object) -> None:
        words = [f"model={model}", f"optimizer.lr={lr}", f"seed={seed}"]
        hidden = ["trainer.test=false"] if stage == "tuning" else []
        make_run(folder / str(len(jobs)), loss, *words, *hidden, status=status)
        staged = {"stage": stage, "variant": f"model={model}", "value": lr, "varied": words, **more}
        jobs.append({"number": len(jobs), "overrides": words, "status": status, **staged})

    for model, losses in (("decoder", (1.3, 1.1, 1.2)), ("encoder_decoder", (1.5, 1.4, 1.0))):
        for lr, loss in zip(("0.001", "0.003", "0.009"), losses, strict=True):
            failed = model == "decoder" and lr == "0.001"
            add(model, lr, 1000, "tuning", loss, "failed" if failed else "finished")
    add("encoder_decoder", "0.003", 0, "final", 0.1, replaced=True)
    for seed in (0, 1):
        add("decoder", "0.003", seed, "final", 1.15 + noise(seed))
        add("encoder_decoder", "0.009", seed, "final", 1.05 + noise(seed))
    chosen = {
        "model=decoder": {"value": "0.003", "tried": 3, "ended": 2, "figure": 1.1, "edge": None},
        "model=encoder_decoder": {"value": "0.009", "tried": 3, "ended": 3, "figure": 1.0, "edge": "largest"},
    }
    monitor = {"name": "validation/loss", "mode": "min"}
    tuning = {"tune": "optimizer.lr", "chosen": chosen}
    (folder / "manifest.json").write_text(json.dumps({"jobs": jobs, "monitor": monitor, "tuning": tuning}))
    return folder


def test_tuned_variants_are_judged_on_data_that_chose_nothing(tuned: Path) -> None:
    found = report([tuned]).comparison
    assert found.metric.name == "test/loss"
    assert [row.variant.label for row in found.rows] == ["model=encoder_decoder", "model=decoder"]
    assert [row.figure for row in found.rows] == [
        estimate([lost + noise(seed) + 0.5 for seed in (0, 1)]) for lost in (1.05, 1.15)
    ]
    assert [column.cells for column in columns(found) if column.heading == "optimizer.lr"] == [("0.009", "0.003")]
    (tuning,) = found.tunings
    assert [(one.label, one.values, one.figures, one.chosen, one.best) for one in tuning.tried] == [
        ("model=decoder", ("0.001", "0.003", "0.009"), (None, 1.1, 1.2), "0.003", 1.1),
        ("model=encoder_decoder", ("0.001", "0.003", "0.009"), (1.5, 1.4, 1.0), "0.009", 1.0),
    ]
    notes = " ".join(found.notes)
    assert "model=encoder_decoder: its best optimizer.lr, 0.009, is the largest that was tried" in notes
    assert "model=decoder: its best" not in notes
    assert [item.label for item in found.unfinished] == [
        "model=decoder optimizer.lr=0.001 seed=1000 trainer.test=false"
    ]


def test_the_trials_are_shown_in_every_form(tuned: Path) -> None:
    made = report([tuned])
    assert made.folder / "plots" / "trials.png" in made.files
    (chart,) = charts(made.comparison).tunings
    assert [(one.label, one.x.tolist(), one.y.tolist()) for one in chart.series] == [
        ("model=decoder", [0.003, 0.009], [1.1, 1.2]),
        ("model=encoder_decoder", [0.001, 0.003, 0.009], [1.5, 1.4, 1.0]),
    ]
    text = (made.folder / "report.md").read_text()
    assert "| model=decoder | 0.003 | 1.1 | 3, 2 ended |  |" in text
    assert "| model=encoder_decoder | 0.009 | 1 | 3 | the largest that was tried |" in text
    assert "Trials before the comparison" in made.page.read_text()
    with (made.folder / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["variant"], line["optimizer.lr"]) for line in lines] == [
        ("model=encoder_decoder", "0.009"),
        ("model=decoder", "0.003"),
    ]


def test_a_figure_that_no_run_logged_is_refused_with_the_nearest(sweep: Path) -> None:
    with pytest.raises(
        BadInput, match=r"^--metric validation/acuracy: no run has logged it \(did you mean 'validation/acc"
    ):
        compared(gather([sweep]), metric="validation/acuracy")
    with pytest.raises(
        BadInput, match=r"^--metric acuracy: no run has logged it \(did you mean 'accuracy'\?\); there are "
    ):
        compared(gather([sweep]), metric="acuracy")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("validation/loss", "min"), ("test/perplexity", "min"), ("validation/character_error_rate", "min")),
        *(("validation/bits_per_byte", "min"), ("seconds", "min"), ("tokens_per_second", "max"), ("test/bleu", "max")),
    ],
)
def test_directions(name: str, expected: str) -> None:
    assert direction(name) == expected


def test_one_seed_has_no_interval_and_the_report_says_so(tmp_path: Path) -> None:
    for i in range(2):
        make_run(tmp_path / str(i), 0.5 + i, f"optimizer.lr={i + 1}")
    found = compared(gather([tmp_path]))
    assert any(note.startswith("One seed only: a figure has no interval") for note in found.notes)
    (losses,) = [column for column in columns(found) if column.heading == "validation/loss"]
    assert losses.cells == ("0.5000", "1.500")
    assert "verdict" not in [column.heading for column in columns(found)]


def test_jobs_without_a_result_have_the_command_that_repeats_them(sweep: Path, found: Comparison) -> None:
    commands = {item.entry.folder.name: (item.entry.status, item.command) for item in found.unfinished}
    assert commands == {
        "9": ("failed", "python train.py optimizer.lr=0.01 seed=3"),
        "10": ("preempted", f"triform resume {sweep / '10'}"),
    }
    assert len(found.rows[0].variant.finished) == 3


def test_a_sweep_of_which_nothing_finished_has_a_report(tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "0", 2.0, "optimizer.lr=1", status="failed", error="it broke", steps=1)
    (tmp_path / "a" / "manifest.json").write_text(
        '{"jobs": [{"number": 1, "overrides": ["x=2"], "status": "waiting"}]}'
    )
    made = report([tmp_path / "a"])
    text = (made.folder / "report.md").read_text()
    assert made.folder == tmp_path / "a"
    assert "nothing to compare yet" in text
    assert "it broke" in text
    assert "`python train.py x=2`" in text


def test_what_differs_names_classes_and_leaves_out_what_is_only_theirs(tmp_path: Path) -> None:
    for i, norm in enumerate(("layer", "rms")):
        make_run(tmp_path / str(i), 0.5, f"model/norm={norm}")
    differing = compared(gather([tmp_path])).differing
    assert differing["model.norm"] == ["LayerNorm", "RMSNorm"]
    assert "model.norm.bias" not in differing  # which RMSNorm has not
    assert "model.norm.eps" in differing  # both have one


def test_a_finished_run_without_the_figure_is_left_out_and_said(tmp_path: Path) -> None:
    for i, loss in enumerate((0.5, 0.2, float("nan"))):
        make_run(tmp_path / str(i), loss, f"seed={i}")
    found = compared(gather([tmp_path]))
    assert found.rows[0].figure is not None
    assert (found.rows[0].figure.mean, found.rows[0].figure.n) == (pytest.approx(0.35), 2)
    assert "Left out: 1 finished run without a finite validation/loss." in found.notes


def test_other_data_is_pointed_out(tmp_path: Path) -> None:
    for i in range(2):
        make_run(tmp_path / str(i), 0.5, f"data.n_train={100 + i}")
    assert any("differ in their data (data.n_train)" in note for note in compared(gather([tmp_path])).notes)


def test_a_curve_is_the_mean_over_seeds_with_its_interval(sweep: Path) -> None:
    runs = [read_run(sweep / str(i)) for i in SEEDS]
    made = mean_curve(runs, "validation/loss", "FLOPs")
    assert made is not None
    x, mean, low, high = made
    assert x.tolist() == [tokens * 6000 for tokens in (250, 500, 750, 1000)]
    last = [run.summary["best"]["validation/loss"] for run in runs]
    logged = [run.metrics["validation/loss"] for run in runs]
    ends = [values[~np.isnan(values)][-1] for values in logged]
    assert mean[-1] == pytest.approx(np.mean(ends))
    assert np.allclose(ends, last, atol=0.02)
    assert low is not None
    assert high is not None
    assert high[-1] - mean[-1] == pytest.approx(stats.sem(ends) * stats.t.ppf(0.975, 2))
    assert mean[-1] - low[-1] == pytest.approx(high[-1] - mean[-1])
    alone = mean_curve(runs[:1], "validation/loss", "seconds")
    assert alone is not None
    assert alone[2] is None


def test_a_curve_ends_where_the_first_run_does_and_keeps_few_points(tmp_path: Path) -> None:
    for i, steps in enumerate((300, 400)):
        make_run(tmp_path / str(i), 0.5, f"seed={i}", steps=steps)
    runs = [read_run(tmp_path / str(i)) for i in range(2)]
    made = mean_curve(runs, "train/loss", "tokens", points=40)
    assert made is not None
    assert (made[0][0], made[0][-1], len(made[0])) == (50, 300 * 50, 40)
    assert mean_curve(runs, "validation/bleu", "tokens") is None


def test_the_csv_reads_back_in_full(found: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert [row["variant"] for row in rows] == [row.variant.label for row in found.rows]
    for row, expected in zip(rows, found.rows, strict=True):
        assert expected.figure is not None
        assert float(row["validation/loss"]) == expected.figure.mean
        assert float(row["test/loss"]) == pytest.approx(expected.figure.mean + 0.5)
        assert row["optimizer.lr"] == expected.variant.label.removeprefix("lr=")
        assert (row["p_holm"] == "") == expected.is_baseline
        assert len(row["runs"].split()) == 3


def test_the_latex_is_a_table_whose_letters_are_escaped(tmp_path: Path) -> None:
    for i, name in enumerate(("encoder_decoder", "decoder")):
        make_run(tmp_path / str(i), 0.5 + i, f"model={name}")
    text = as_latex(compared(gather([tmp_path])))
    assert r"model=encoder\_decoder" in text
    assert text.count(r"\\") == 3
    assert r"\textbf{0.5000}" in text
    assert "_" not in text.replace(r"\_", "")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({line.replace(r"\&", "").count("&") for line in body}) == 1


class Page(HTMLParser):
    """Every tag with its attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "path", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "circle"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def test_the_page_needs_nothing_else_and_says_what_runs_said(found: Comparison) -> None:
    drawn = charts(found)
    text = page(found, drawn)
    parsed = Page(text)
    assert not parsed.open, "every element is closed"
    for tag, attributes in parsed.tags:
        assert tag not in ("link", "img", "iframe")
        assert "src" not in attributes
        assert "href" not in attributes
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [a for _, a in parsed.tags]
    assert "prefers-color-scheme: dark" in text
    n_charts = sum(len(by) for by in drawn.curves.values()) + len(drawn.fronts)
    assert parsed.count("svg") == n_charts == 2 * 3 + 1
    assert parsed.count("script") == n_charts + 1
    said = "".join(parsed.words)
    assert HOSTILE in said  # as a text
    assert "ValueError: <script>alert('x')</script>" in said
    assert "python train.py optimizer.lr=0.01 seed=3" in said


def test_the_report_is_written_where_the_sweep_is(sweep: Path, found: Comparison) -> None:
    made = report([sweep])
    assert made.folder == sweep
    names = {path.relative_to(sweep).as_posix() for path in made.files}
    assert names == {
        *("report.html", "report.md", "table.csv", "table.tex"),
        *("plots/train_loss.png", "plots/validation_loss.png", "plots/front.png"),
    }
    assert imread(sweep / "plots" / "validation_loss.png").shape[1] > 1000
    document = (sweep / "report.md").read_text()
    table = [line for line in document.splitlines() if line.startswith("|")]
    assert "**lr=0.003** (baseline)" in document
    assert "![front](plots/front.png)" in document
    assert len({line.replace(r"\|", "").count("|") for line in table[:5]}) == 1
    assert gather([sweep])[0].folder == sweep / "0"  # what was written is no run


def test_several_places_get_a_folder_of_their_own(sweep: Path) -> None:
    made = report([sweep / "0", sweep / "3"])
    assert made.folder.parent == sweep.parent / "compare"  # where their config says that runs go
    with pytest.raises(BadInput, match=r"^--out .*: cannot write the report there: "):
        report([sweep], out=sweep / "0" / "config.yaml" / "x")


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = [
        Written("2 May", "05-02", "05-02", True),
        Written("a\n\nb", "written: c\n", "given:", False),
        Written("text", "more", None, None),
    ]
    (tmp_path / "samples.txt").write_text(as_text(written))
    assert read_samples(tmp_path / "samples.txt") == [
        Sample("2 May", "05-02", "05-02", "right"),
        Sample("a\n\nb", "written: c\n", "given:", "wrong"),
        Sample("text", "more", "", ""),
    ]
    assert len(read_samples(tmp_path / "samples.txt", limit=1)) == 1
    assert read_samples(tmp_path / "absent.txt") == []


def test_importance_finds_the_key_that_matters() -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("sklearn")
    generator = np.random.default_rng(0)
    lr = (10 ** generator.uniform(-4, -1, 60)).tolist()
    norm = [("layer", "rms", None)[i % 3] for i in range(60)]
    figures = [float(np.log10(value) ** 2) for value in lr]
    found = importance({"optimizer.lr": lr, "model/norm": norm}, [*figures[:-1], None])
    assert list(found.shares) == ["optimizer.lr", "model/norm"]
    assert found.shares["optimizer.lr"] > 0.9
    assert sum(found.shares.values()) == pytest.approx(1)


def test_importance_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a": [1, 2, 3, 4], "b": [1, 1, 2, 2]}
    assert importance({"a": values["a"]}, [1.0] * 4).missing == "needs two keys or more that vary"
    assert "there are 2" in importance(values, [1.0, None, 2.0, None]).missing
    assert "the same figure" in importance(values, [1.0] * 4).missing
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install triform[search]" in importance(values, [1.0, 2.0, 3.0, 4.0]).missing


def test_two_hundred_runs_take_less_than_ten_seconds(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for i in range(208):
        lr, dropout = float(10 ** generator.uniform(-4, -1)), i % 4 / 10
        loss = 0.3 + 0.2 * (np.log10(lr) + 2.5) ** 2
        make_run(tmp_path / str(i), float(loss), f"optimizer.lr={lr:.6f}", f"model.dropout={dropout}")
    start = time.process_time()
    made = report([tmp_path])
    assert time.process_time() - start < 10
    found = made.comparison
    assert found.is_search
    assert len(found.rows) == 208
    drawn = charts(found)
    assert len(drawn.colours) == COLOURS
    assert [chart.title for chart in drawn.slices] == ["lr", "dropout"]
    assert drawn.slices[0].x_log
    assert [one.colour is None for one in drawn.slices[0].series] == [True] * 200 + [False] * 8  # which lie above
    assert not drawn.fronts  # all cost the same
    assert (tmp_path / "plots" / "slices.png").exists()
    assert made.page.stat().st_size < 2e6


def test_it_needs_no_torch() -> None:
    code = "import sys, triform.analysis.compare.page, triform.analysis.compare.pictures; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("mean", "half", "expected"),
    [(0.31416, 0.0123, "0.314 ± 0.012"), (1234.5, 56.7, "1234 ± 57"), (0.5, None, "0.5000"), (1.0, 0.0, "1.000 ± 0")],
)
def test_figures_have_the_digits_that_their_interval_leaves(mean: float, half: float | None, expected: str) -> None:
    assert plus_minus(mean, half) == expected


def test_numbers_are_brief() -> None:
    assert [brief(value) for value in (0, 950, 999.9, 1000, 12_345, 1.25e6, 1e-5, -2500)] == [
        *("0", "950", "1k", "1k", "12.3k", "1.25M", "1e-05", "-2.5k"),
    ]


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0.13, 0.87, False) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert ticks(-3, 11, False) == [-2.5, 0, 2.5, 5, 7.5, 10]
    assert ticks(2e-4, 0.3, True) == pytest.approx([1e-3, 1e-2, 1e-1])
    assert ticks(0.9, 6, True) == [1, 2, 5]


def test_a_figure_prefers_the_best_checkpoint(tmp_path: Path) -> None:
    make_run(tmp_path / "0", 0.5)
    run = read_run(tmp_path / "0")
    run.summary["last"]["validation/loss"] = 9.0
    assert figure(run, "validation/loss") == 0.5
    assert figure(run, "train/loss") == 0.6
    assert figure(run, "parameters") == 1000
    assert figure(run, "validation/bleu") is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((2e-3, 4e-3, 8e-3, 1.6e-2), True),
        ((1.6e-2, 4e-3, 8e-3, 4e-3), True),
        ((1e-3, 3e-3, 1e-2), True),
        ((2, 4, 6, 8), False),
        ((0.1, 0.2, 0.3, 0.4), False),
        ((0.0, 0.1, 0.3), False),
        ((1, 8), False),
        ((1, 10), True),
        ((3e-4, 3e-4), False),
    ],
)
def test_what_was_varied_by_a_factor_is_drawn_by_its_logarithm(values: tuple[float, ...], expected: bool) -> None:
    assert by_logarithm(values) is expected
