"""Everything that the report shows, as numbers."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triform.analysis.compare.figures import LOSS, SIZES, Metric, figure, judged_by, monitor, names, number, total_flops
from triform.analysis.compare.gather import Entry
from triform.analysis.compare.samples import Sample, read_samples
from triform.analysis.compare.search import Importance, importance, numeric
from triform.analysis.compare.statistics import Difference, Estimate, estimate, holm, paired
from triform.analysis.compare.tuning import Tuning, tunings
from triform.analysis.compare.variants import UNSET, Variant, differing, find, shown, variants, varied

SIGNIFICANT = 0.05
SEARCHED = 8
"""Variants from which on a numeric key's values are a search: they get slices and importances."""
PER_TOKEN = ("loss", "perplexity")
BATCHING = ("seq_len", "batch_size", "batch_tokens", "packing", "num_workers", "seed")


@dataclass
class Row:
    """A variant's figures over its finished runs.

    Attributes:
        figure: what it is judged by; None: no run has finished with it.
        difference: to the baseline, over common seeds; None: of the baseline itself, or without such seeds.
        p: of the difference, by Holm's correction over all variants.
        test: the same figure on test data.
        sizes: means over its runs, by the names of summary.json, and `flops` of all training.
        relative: sizes over those of the baseline, less 1.
        others: all other figures that its runs ended with.
    """

    variant: Variant
    figure: Estimate | None
    difference: Difference | None
    p: float | None
    test: Estimate | None
    sizes: dict[str, float]
    relative: dict[str, float]
    others: dict[str, Estimate]
    is_baseline: bool = False
    verdict: str = ""

    @property
    def tuned(self) -> tuple[str, str]:
        """The key that was tuned for it, and the value at which it is judged; empty: none was."""
        entry = self.variant.entries[0]
        return entry.tuned, entry.value


@dataclass(frozen=True)
class Unfinished:
    """A run without a result, and the command that repeats it or goes on with it."""

    entry: Entry
    label: str
    command: str


@dataclass
class Comparison:
    """What was found.

    Attributes:
        rows: best first; variants without a figure last.
        differing: dotted key to a shown value for each row, where they differ; a part's key is its class.
        varied: what was typed otherwise, key to a value for each row.
        samples: row's label to outputs of its best run.
        importance: None: this is no search.
        notes: sentences that a reader needs to judge the figures by.
        tunings: trials that came before, of each sweep that had some.
    """

    metric: Metric
    baseline: Variant | None
    rows: list[Row]
    entries: list[Entry]
    unfinished: list[Unfinished]
    differing: dict[str, list[str]]
    varied: dict[str, list[Any]]
    samples: dict[str, list[Sample]]
    importance: Importance | None
    notes: list[str]
    tunings: list[Tuning]

    @property
    def title(self) -> str:
        """In a line, what was compared."""
        n = sum(len(row.variant.finished) for row in self.rows)
        return f"{_counted(len(self.rows), 'variant')}, {_counted(n, 'finished run')}, by {self.metric.name}"

    @property
    def is_search(self) -> bool:
        """Whether many values of a numeric key were tried."""
        return len(self.rows) >= SEARCHED and any(numeric(values) for values in self.varied.values())


def compared(
    entries: Sequence[Entry], metric: str | None = None, mode: str | None = None, baseline: str | None = None
) -> Comparison:
    """Compare the variants among some runs.

    Args:
        metric: figure to judge by; None: what picked the runs' best checkpoints.
        mode: "min" or "max" where the figure's name does not tell; None: as runs or the name say.
        baseline: label, folder, or KEY=VALUE of the variant that others are compared with; None: the first.

    Raises:
        BadInput: no run has logged the figure, or no variant is the baseline.
    """
    begun = [entry.run for entry in entries if entry.run is not None and entry.counts]
    judge = judged_by(begun, metric, mode)
    group = variants(entries)
    reference = find(group, baseline) if baseline is not None else group[0] if group else None
    rows = [_row(variant, judge, reference) for variant in group]
    tested = [(row, row.difference) for row in rows if row.difference is not None and row.difference.p is not None]
    for (row, apart), p in zip(tested, holm([apart.p for _, apart in tested if apart.p is not None]), strict=True):
        row.p = p
        if p < SIGNIFICANT:
            row.verdict = "better" if (apart.mean < 0) == (judge.mode == "min") else "worse"
    sign = 1 if judge.mode == "min" else -1
    rows.sort(key=lambda row: (row.figure is None, sign * row.figure.mean if row.figure else 0.0))
    ordered = [row.variant for row in rows]
    differ = {key: [_told(variant.config.get(key)) for variant in ordered] for key in differing(ordered)}
    own = [key for key in differ if _is_own(key, differ)]
    differ = {key.removesuffix("._target_"): values for key, values in differ.items() if key not in own}
    found = Comparison(
        metric=judge,
        baseline=reference,
        rows=rows,
        entries=list(entries),
        unfinished=_unfinished(entries, ordered),
        differing=differ,
        varied=varied(ordered),
        samples={row.variant.label: samples for row in rows if (samples := _samples(row.variant, judge))},
        importance=None,
        notes=[],
        tunings=tunings(entries, group),
    )
    if found.is_search:
        found.importance = importance(found.varied, [row.figure.mean if row.figure else None for row in rows])
    found.notes = _notes(found, begun)
    return found


def _row(variant: Variant, metric: Metric, reference: Variant | None) -> Row:
    assert reference is not None
    runs = variant.finished
    sizes, of_reference = _sizes(variant), _sizes(reference)
    difference = (
        None if variant is reference else paired(_by_seed(variant, metric.name), _by_seed(reference, metric.name))
    )
    shown_apart = {metric.name, metric.on_test.name, *SIZES}
    others = {name: known for name in names(runs) if name not in shown_apart and (known := _estimate(variant, name))}
    return Row(
        variant=variant,
        figure=_estimate(variant, metric.name),
        difference=difference,
        p=None,
        test=None if metric.name.startswith("test/") else _estimate(variant, metric.on_test.name),
        sizes=sizes,
        relative={
            name: value / of_reference[name] - 1
            for name, value in sizes.items()
            if of_reference.get(name) and variant is not reference
        },
        others=others,
        is_baseline=variant is reference,
    )


def _by_seed(variant: Variant, name: str) -> dict[str, float]:
    return {str(run.config.get("seed")): value for run in variant.finished if (value := figure(run, name)) is not None}


def _estimate(variant: Variant, name: str) -> Estimate | None:
    return estimate(list(_by_seed(variant, name).values()))


def _sizes(variant: Variant) -> dict[str, float]:
    columns = {name: [number(run.summary.get(name)) for run in variant.finished] for name in SIZES}
    columns["flops"] = [total_flops(run) for run in variant.finished]
    known = {name: [value for value in values if value is not None] for name, values in columns.items()}
    return {name: float(np.mean(values)) for name, values in known.items() if values}


def _samples(variant: Variant, metric: Metric) -> list[Sample]:
    """Of its run with the best figure."""
    sign = 1 if metric.mode == "min" else -1
    judged = [
        (sign * value, i) for i, run in enumerate(variant.finished) if (value := figure(run, metric.name)) is not None
    ]
    return read_samples(variant.finished[min(judged)[1]].folder / "samples.txt") if judged else []


def _unfinished(entries: Sequence[Entry], group: Sequence[Variant]) -> list[Unfinished]:
    by_folder = {entry.folder: variant.label for variant in group for entry in variant.entries}
    return [
        Unfinished(entry, by_folder.get(entry.folder) or " ".join(entry.overrides) or "as it is", command(entry))
        for entry in entries
        if entry.status != "finished" and not entry.replaced
    ]


def command(entry: Entry) -> str:
    """What repeats a run that failed or has not begun, or goes on with one that was stopped."""
    if entry.run is not None and entry.status in ("preempted", "running", "unknown"):
        return shlex.join(["triform", "resume", str(entry.folder)])
    return shlex.join(["python", "train.py", *entry.overrides])


def _told(value: Any) -> str:
    return UNSET if value is None else shown(value)


def _is_own(key: str, differ: Mapping[str, Sequence[str]]) -> bool:
    """Whether a key differs only because another class stands above it, which has no such key."""
    parts = key.split(".")
    above = (".".join([*parts[:n], "_target_"]) for n in range(1, len(parts)))
    return parts[-1] != "_target_" and len(set(differ[key]) - {UNSET}) == 1 and any(name in differ for name in above)


def _notes(found: Comparison, begun: Sequence[Any]) -> list[str]:
    rows, notes = found.rows, []
    way = "less" if found.metric.mode == "min" else "more"
    judged = [row for row in rows if row.figure is not None]
    counts = sorted({row.figure.n for row in judged if row.figure is not None})
    notes.append(
        f"Judged by {found.metric.name}, of which {way} is better"
        + (", at each run's best checkpoint." if found.metric.name.startswith("validation/") else ".")
    )
    if not judged:
        return [*notes, "No run has finished with this figure, so there is nothing to compare yet."]
    if counts == [1]:
        notes.append(
            "One seed only: a figure has no interval, and a difference may be chance. Run more: seed=0,1,2,3,4."
        )
    else:
        notes.append(f"± is half of a 95 % t interval over {_range(counts)} seeds.")
        n_tests = sum(row.p is not None for row in rows)
        if n_tests and found.baseline is not None:
            notes.append(
                f"Differences are to the baseline ({found.baseline.label}) at the same seeds; p is of the paired t "
                f"test with Holm's correction over {_counted(n_tests, 'comparison')}."
            )
        if counts[0] == 1:
            notes.append("Variants of one seed have no interval.")
    if found.is_search and found.metric.name.startswith("validation/"):
        notes.append("The best of many variants on validation data is better there than it will be on other data.")
    apart = [row for row in judged if row.difference is None and not row.is_baseline]
    if apart and found.baseline is not None:
        notes.append(
            f"{_counted(len(apart), 'variant')} have no seed in common with the baseline, or it has no result."
        )
    repeated = sum(
        sum(entry.status == "finished" for entry in row.variant.entries) - len(row.variant.finished) for row in rows
    )
    if repeated:
        notes.append(f"{_counted(repeated, 'run')} repeated another's seed and configuration: the last one counts.")
    n_blank = sum(len(row.variant.finished) - (row.figure.n if row.figure else 0) for row in rows)
    if n_blank:
        notes.append(f"Left out: {_counted(n_blank, 'finished run')} without a finite {found.metric.name}.")
    monitors = {metric.name for run in begun if (metric := monitor(run)) is not None}
    if len(monitors) > 1:
        notes.append(f"Runs picked their best checkpoints by different figures: {', '.join(sorted(monitors))}.")
    other_data = [
        key for key in found.differing if key.partition(".")[0] == "data" and key.rpartition(".")[2] not in BATCHING
    ]
    if other_data:
        notes.append(
            f"Variants differ in their data ({', '.join(other_data[:3])}): figures on other data do not compare."
        )
    per_token = found.metric.name.endswith(PER_TOKEN) or found.metric.name == LOSS
    if per_token and any(key.partition(".")[0] == "tokenizer" for key in found.differing):
        notes.append("Variants differ in their tokenizer: a loss per token does not compare, bits_per_byte does.")
    if "task" in found.differing:
        notes.append("Variants differ in their task: a figure of one name may measure different things.")
    for tuning in found.tunings:
        counts = sorted({len(one.values) for one in tuning.tried})
        notes.append(
            f"Each variant is judged at its own best {tuning.key} of {_range(counts)}, chosen by {tuning.metric} at "
            "another seed; these trials did not see test data."
        )
        notes += tuning.warnings()
    n_left = len(found.unfinished)
    if n_left:
        notes.append(
            f"{_counted(n_left, 'job')} without a result {'are' if n_left > 1 else 'is'} listed in the report."
        )
    return notes


def _range(counts: Sequence[int]) -> str:
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
