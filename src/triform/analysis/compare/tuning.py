"""What a sweep tried before it compared: for each variant the values of the tuned key, and which of them was chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triform.analysis.compare.figures import figure
from triform.analysis.compare.gather import Entry, read_manifest
from triform.analysis.compare.variants import Variant

TUNING = "tuning"
"""Stage of the runs that try values."""


@dataclass(frozen=True)
class Tried:
    """A variant's trials.

    Attributes:
        label: of the variant.
        values: of the tuned key, in the order in which they were tried.
        figures: what each came to on validation data; None: it failed, or has not ended.
        chosen: the best of the values; None: it is not known yet, or none has a figure.
        edge: whether that is the "smallest" or "largest" of them; None: neither.
    """

    label: str
    values: tuple[str, ...]
    figures: tuple[float | None, ...]
    chosen: str | None
    edge: str | None

    @property
    def best(self) -> float | None:
        """The figure at the chosen value."""
        return self.figures[self.values.index(self.chosen)] if self.chosen in self.values else None


@dataclass(frozen=True)
class Tuning:
    """The trials of a sweep, by which the figure `metric` chose a value of `key` for each variant."""

    key: str
    metric: str
    tried: tuple[Tried, ...]

    def warnings(self) -> list[str]:
        """Where a choice may not be the best one."""
        found = []
        for one in self.tried:
            if one.chosen is None:
                found.append(f"{one.label}: no value of {self.key} was chosen, so it is not compared.")
            elif one.edge is not None:
                found.append(
                    f"{one.label}: its best {self.key}, {one.chosen}, is the {one.edge} that was tried: a better one "
                    "may lie beyond."
                )
        return found


def tunings(entries: Sequence[Entry], group: Sequence[Variant]) -> list[Tuning]:
    """The trials of every sweep among some runs that had any."""
    labels = {entry.folder: variant.label for variant in group for entry in variant.entries}
    found = []
    for folder in dict.fromkeys(entry.folder.parent for entry in entries if entry.stage == TUNING):
        manifest = read_manifest(folder)
        mine = [entry for entry in entries if entry.folder.parent == folder and not entry.replaced]
        names = dict.fromkeys(entry.variant for entry in mine if entry.stage == TUNING)
        called = {entry.variant: labels[entry.folder] for entry in mine if entry.folder in labels}
        metric = str((manifest.get("monitor") or {}).get("name"))
        chosen = _chosen(manifest)
        tried = tuple(_tried(name, called.get(name, name), mine, metric, chosen.get(name, {})) for name in names)
        found.append(Tuning(next(entry.tuned for entry in mine if entry.tuned), metric, tried))
    return found


def _tried(name: str, label: str, entries: Sequence[Entry], metric: str, chosen: Mapping[str, Any]) -> Tried:
    trials = [entry for entry in entries if entry.stage == TUNING and entry.variant == name]
    ended = [entry.run if entry.status in ("finished", "pruned") else None for entry in trials]
    return Tried(
        label,
        tuple(entry.value for entry in trials),
        tuple(None if run is None else figure(run, metric) for run in ended),
        chosen.get("value"),
        chosen.get("edge"),
    )


def _chosen(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found = (manifest.get("tuning") or {}).get("chosen")
    return {str(name): dict(one) for name, one in found.items()} if isinstance(found, dict) else {}
