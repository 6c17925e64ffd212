"""Which runs are compared: run folders, folders of them, sweeps and patterns, as they are on disk."""

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triform.analysis.runs import Run, read_run
from triform.run.errors import BadInput, nearest
from triform.run.folder import RunFolder, read_overrides

MANIFEST = "manifest.json"
ENDS = ("finished", "failed", "preempted", "pruned")
"""What a summary says of a run that goes on no more. A sweep's manifest knows better of any other: a run that was
killed says `running` for ever."""


@dataclass(frozen=True)
class Entry:
    """One run, or a sweep's job that has not begun.

    Attributes:
        overrides: what was typed for it, without the program's name.
        status: `finished`, `running`, `failed`, `preempted`, `pruned`, `waiting` or `unknown`.
        run: None: it has not begun.
        stage: "tuning" or "final" where a sweep tuned its variants before it compared them, else empty.
        variant: of a stage, what the sweep compares, in words.
        tuned: of a stage, the key that was tuned.
        value: of a stage, that of the tuned key.
        replaced: the sweep counts it no more.
    """

    folder: Path
    overrides: tuple[str, ...]
    status: str
    error: str | None
    run: Run | None
    stage: str = ""
    variant: str = ""
    tuned: str = ""
    value: str = ""
    replaced: bool = False

    @property
    def counts(self) -> bool:
        """Whether it is compared: trials and runs that were replaced are not."""
        return self.stage in ("", "final") and not self.replaced

    @property
    def name(self) -> str:
        """The last two parts of its folder's path."""
        return "/".join(self.folder.parts[-2:])

    @property
    def seed(self) -> Any:
        """What pairs it with a run of another variant."""
        return None if self.run is None else self.run.config.get("seed")


def gather(places: Sequence[str | Path]) -> list[Entry]:
    """The runs in `places`, each once, a sweep's jobs by their numbers.

    Args:
        places: run folders, folders of run folders (or of folders of them), or patterns of either with `*`, `?`, `[]`.

    Raises:
        BadInput: one of them does not exist or holds no run, or nothing was named.
    """
    if not places:
        raise BadInput("compare: no folder was named; give runs, a sweep's folder or a pattern of them")
    entries: dict[Path, Entry] = {}
    for place in places:
        for folder in _expanded(place):
            for entry in _entries(folder):
                entries.setdefault(entry.folder, entry)
    return list(entries.values())


def only_folder(places: Sequence[str | Path]) -> Path | None:
    """The one folder of run folders (a sweep, say) that `places` name; None: a run, or several places."""
    if len(places) != 1:
        return None
    folders = _expanded(places[0])
    return folders[0] if len(folders) == 1 and not _is_run(folders[0]) else None


def _expanded(place: str | Path) -> list[Path]:
    path = Path(place).expanduser()
    if path.is_dir():
        return [path.resolve()]
    found = sorted(Path(match) for match in glob.glob(str(path)))
    folders = [match.resolve() for match in found if match.is_dir()]
    if folders:
        return sorted(folders, key=_by_number)
    siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
    raise BadInput(f"{place}: no such folder{nearest(path.name, siblings)}; give runs, a sweep's folder or a pattern")


def _entries(folder: Path) -> list[Entry]:
    if _is_run(folder):
        return [_entry(folder, _manifest(folder.parent).get(folder.name, {}))]
    listed = _manifest(folder)
    names = {config.parent for config in folder.glob("*/config.yaml")} | {folder / name for name in listed}
    if not names:  # outputs/sweeps: a folder of sweeps
        parents = {config.parent.parent for config in folder.glob("*/*/config.yaml")}
        if not parents:
            raise BadInput(f"{folder} holds no run: no config.yaml is in it or below; give runs or a sweep's folder")
        return [entry for parent in sorted(parents, key=_by_number) for entry in _entries(parent)]
    return [_entry(path, listed.get(path.name, {})) for path in sorted(names, key=_by_number)]


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _by_number(path: Path) -> tuple[bool, int, str]:
    return (not path.name.isdigit(), int(path.name) if path.name.isdigit() else 0, str(path))


def _entry(folder: Path, listed: Mapping[str, Any]) -> Entry:
    run = read_run(folder) if _is_run(folder) else None
    status = run.status if run is not None else "waiting"
    error = run.summary.get("error") if run is not None else None
    if status not in ENDS:
        status = str(listed.get("status") or status)
    staged = {name: str(listed.get(name) or "") for name in ("stage", "variant", "tuned", "value")}
    error = _error(error or listed.get("error"), listed)
    return Entry(
        folder, _typed(folder, run, listed), status, error, run, **staged, replaced=bool(listed.get("replaced"))
    )


def _typed(folder: Path, run: Run | None, listed: Mapping[str, Any]) -> tuple[str, ...]:
    if run is not None:
        try:
            return tuple(read_overrides(RunFolder(folder)))
        except BadInput:  # what was typed only names things: the config says what they are
            pass
    words = listed.get("overrides")
    return tuple(str(word) for word in words) if isinstance(words, list) else ()


def _error(error: Any, listed: Mapping[str, Any]) -> str | None:
    """In one line, with the file and line where it arose, as far as the sweep knows."""
    if error is None:
        return None
    where = listed.get("where")
    return " ".join(f"{error} ({where})".split() if where else str(error).split())


def _manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """A sweep's jobs by number; empty where there is no manifest, or none that can be read."""
    try:
        manifest = read_manifest(folder)
        tuned = {"tuned": (manifest.get("tuning") or {}).get("tune")}
        return {str(job["number"]): dict(job) | (tuned if job.get("stage") else {}) for job in manifest["jobs"]}
    except (KeyError, TypeError, ValueError):
        return {}


def sweep_monitor(folder: Path | None) -> tuple[str, str] | None:
    """What a sweep judges its jobs by, and its mode; None: it is no sweep, or does not say."""
    said = read_manifest(folder).get("monitor") if folder is not None else None
    if isinstance(said, dict) and isinstance(said.get("name"), str) and said.get("mode") in ("min", "max"):
        return said["name"], said["mode"]
    return None


def read_manifest(folder: Path) -> dict[str, Any]:
    """A sweep's record; empty where there is none, or none that can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}
