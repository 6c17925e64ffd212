"""What chooses the jobs of a sweep: asked for the next one, told how each ended."""

import itertools
import math
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException

from triform.run.errors import BadInput, nearest, one_line
from triform.run.refusal import explain
from triform.sweeps.manifest import Job, Manifest, SweepFolder


class Sampler(ABC):
    """Chooses jobs one after the other; only the driver of a sweep asks and tells it, never a rank.

    `begin` comes first, also when a sweep is taken up again; then `ask` and `tell` in any order, as jobs begin and
    end.
    """

    adaptive: ClassVar[bool] = False
    """Whether a job depends on how others ended. If not, all are asked for and checked before the first one starts."""

    watches: ClassVar[bool] = False
    """Whether `watch` is to be called while jobs run."""

    @abstractmethod
    def example(self) -> list[str] | None:
        """Overrides that a job may have, which is not asked for by this; None: there can be no job."""

    def examples(self) -> list[list[str]]:
        """Overrides of jobs that are checked before the first one starts, where jobs are asked for one by one."""
        example = self.example()
        return [] if example is None else [example]

    @abstractmethod
    def begin(self, jobs: Sequence[Job]) -> None:
        """Know the jobs that the sweep has already, of this and of earlier calls."""

    def open(self, folder: SweepFolder, manifest: Manifest) -> None:  # noqa: B027
        """Take up what stands in the sweep's folder, which is there now; where jobs are asked for one by one, this
        comes before the first `ask`."""

    @abstractmethod
    def ask(self, number: int) -> list[str] | None:
        """Overrides of a further job, which will have this number; None: there is none, at least for now."""

    def job(self, number: int, fixed: Sequence[str]) -> Job | None:
        """The next job, which will have this number, unless it is one that the sweep has; None: there is none, at least
        for now.

        Args:
            fixed: overrides that all jobs share.
        """
        varied = self.ask(number)
        return None if varied is None else Job(number, varied, [*fixed, *varied])

    def foreseen(self, number: int, fixed: Sequence[str]) -> Job | None:
        """The same before any job has run: of those that do not depend on how others end."""
        return None if self.adaptive else self.job(number, fixed)

    def wants(self, job: Job) -> bool:
        """Whether a job of an earlier call that has not ended is to go on, or to begin, now."""
        return True

    def has_more(self) -> bool:
        """Whether there will be jobs that are not known yet."""
        return False

    def tell(self, number: int, status: str, figure: float | None) -> None:  # noqa: B027
        """Hear how a job ended.

        Args:
            status: finished, pruned, failed or preempted; a preempted job goes on later.
            figure: the best value of what the sweep judges by; None: it has none that is finite.
        """

    def watch(self, number: int, step: int, figure: float) -> bool:
        """Hear of a validation of a running job and say whether to prune it."""
        return False

    def conclusions(self) -> list[str]:
        """Lines for the end of the sweep."""
        return []


class Grid(Sampler):
    """Every combination, the first key's values slowest.

    Args:
        axes: for each thing that varies, its alternatives; each is a list of overrides.
    """

    def __init__(self, axes: Sequence[Sequence[Sequence[str]]]) -> None:
        self.axes = axes
        self._left: list[list[str]] = []

    def example(self) -> list[str] | None:
        return next(self.combinations(), None)

    def combinations(self) -> Iterator[list[str]]:
        """The overrides of each job."""
        for alternatives in itertools.product(*self.axes):
            yield [word for alternative in alternatives for word in alternative]

    def begin(self, jobs: Sequence[Job]) -> None:
        known = {frozenset(job.varied) for job in jobs}
        self._left = []
        for words in self.combinations():
            if frozenset(words) not in known:
                known.add(frozenset(words))
                self._left.append(words)

    def ask(self, number: int) -> list[str] | None:
        return self._left.pop(0) if self._left else None


class Random(Sampler):
    """Values drawn from each key's range on its own: job i of a seed is the same, however many there are.

    Args:
        space: key -> its range (`Interval`) or its values.
        n_jobs: jobs in all.
        seed: of what is drawn.
    """

    def __init__(self, space: Mapping[str, "Interval | Sequence[str]"], n_jobs: int, seed: int) -> None:
        self.space, self.n_jobs, self.seed = space, n_jobs, seed

    def example(self) -> list[str] | None:
        return self.ask(0)

    def begin(self, jobs: Sequence[Job]) -> None:
        pass

    def ask(self, number: int) -> list[str] | None:
        if number >= self.n_jobs:
            return None
        generator = np.random.default_rng([self.seed, number])
        return [f"{key}={_drawn(values, generator)}" for key, values in self.space.items()]


class Interval:
    """A range of numbers as Hydra's sweep syntax states it: `interval(1e-5,1e-1)`, `tag(log,interval(...))`,
    `int(interval(1,8))`, whose end belongs to it.

    Raises:
        BadInput: it is empty, or logarithmic and not above 0.
    """

    def __init__(self, key: str, start: float, end: float, log: bool, whole: bool) -> None:
        if not start < end:
            raise BadInput(f"{key}: interval({start:g},{end:g}) is empty; give the smaller end first")
        if log and start <= 0:
            raise BadInput(f"{key}: interval({start:g},{end:g}) has no logarithm; let it begin above 0")
        self.start, self.end, self.log, self.whole = start, end, log, whole

    @property
    def middle(self) -> str:
        """A value in the midst of it."""
        return self.word(math.sqrt(self.start * self.end) if self.log else (self.start + self.end) / 2)

    def word(self, value: float) -> str:
        """A value of it as it is typed, to six significant digits."""
        if self.whole:
            return str(min(max(round(value), int(self.start)), int(self.end)))
        return f"{min(max(value, self.start), self.end):.6g}"

    def draw(self, generator: np.random.Generator) -> str:
        """A value, to six significant digits."""
        half = 0.5 if self.whole else 0.0  # each whole number has the same share
        low, high = self.start - half, self.end + half
        if self.log:
            low = max(low, self.start / 2)
            value = math.exp(generator.uniform(math.log(low), math.log(high)))
        else:
            value = generator.uniform(low, high)
        return self.word(value)


def _drawn(values: "Interval | Sequence[str]", generator: np.random.Generator) -> str:
    return values.draw(generator) if isinstance(values, Interval) else values[int(generator.integers(len(values)))]


# What was typed


def split(arguments: Sequence[str]) -> tuple[list[str], list[Override]]:
    """Overrides that all jobs share, and those that name several values; the last one of a key holds.

    Raises:
        BadInput: one of them cannot be read.
    """
    try:
        overrides = OverridesParser.create().parse_overrides(list(arguments))
    except HydraException as error:
        raise explain(error, arguments) from error
    by_key: dict[str, Override] = {}
    for override in overrides:
        by_key.pop(override.get_key_element(), None)
        by_key[override.get_key_element()] = override
    fixed = [str(one.input_line) for one in by_key.values() if not one.is_sweep_override()]
    return fixed, [one for one in by_key.values() if one.is_sweep_override()]


def is_setting(word: str) -> bool:
    """Whether an override says how jobs are chosen or run, and is none of theirs."""
    key = word.lstrip("+~").partition("=")[0]
    return key in ("search", "compare") or key.startswith(("compare.", "hydra.", "hydra/"))


def values_of(override: Override) -> "Interval | list[str]":
    """What a key may be.

    Raises:
        BadInput: nothing.
    """
    key = override.get_key_element()
    found = override.value()
    if isinstance(found, IntervalSweep):
        assert found.start is not None
        assert found.end is not None
        unknown = sorted(found.tags - {"log", "int"})
        if unknown:
            raise BadInput(f"{key}: tag {unknown[0]} is not known{nearest(unknown[0], ('log', 'int'))}; use log or int")
        whole = "int" in found.tags or (isinstance(found.start, int) and isinstance(found.end, int))
        return Interval(key, found.start, found.end, "log" in found.tags, whole)
    values = list(override.sweep_string_iterator())
    if not values:
        raise BadInput(f"{override.input_line}: no value; give {key} at least one")
    return values


def kind_of(settings: Mapping[str, Any]) -> str:
    """The option of `hydra/sweeper` that settings belong to."""
    return "optuna" if "n_trials" in settings else str(settings["sampler"])


def sampler(settings: Mapping[str, Any], swept: Sequence[Override], fixed: Sequence[str] = ()) -> Sampler:
    """What `hydra.sweeper` and the overrides with several values ask for.

    Args:
        fixed: overrides that all jobs share.

    Raises:
        BadInput: they do not fit, or there is no job in it.
    """
    kind = kind_of(settings)
    if kind == "optuna":
        return _search(settings, swept, fixed)
    if settings.get("space"):
        raise BadInput(f"hydra/sweeper={kind} asks for no space; leave search=... out, or choose hydra/sweeper=optuna")
    if isinstance(settings.get("metric"), list):
        raise BadInput(
            f"hydra.sweeper.metric={settings['metric']}: several figures need hydra/sweeper=optuna; name one"
        )
    if kind in ("grid", "list"):
        return Grid(axes_of(settings, swept))
    space = {override.get_key_element(): values_of(override) for override in swept}
    if kind == "random":
        n_jobs = settings["n_jobs"]
        if isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs < 1:
            raise BadInput(f"hydra.sweeper.n_jobs={n_jobs} is no number of jobs; set hydra.sweeper.n_jobs to 1 or more")
        if not space:
            raise BadInput("hydra/sweeper=random: no key has a range; give one, as optimizer.lr=interval(1e-4,1e-2)")
        return Random(space, n_jobs, settings["seed"])
    raise BadInput(f"hydra.sweeper.sampler={kind} is not known{nearest(kind, ('grid', 'list', 'random'))}")


def axes_of(settings: Mapping[str, Any], swept: Sequence[Override]) -> list[list[list[str]]]:
    """What a grid, or a list, combines.

    Raises:
        BadInput: a range is among it, or the list cannot be read.
    """
    axes = [read_list(settings)] if kind_of(settings) == "list" else []
    for override in swept:
        values = values_of(override)
        if isinstance(values, Interval):
            raise BadInput(
                f"{override.input_line}: a range has no end of values; list some, or choose hydra/sweeper=random or "
                "optuna"
            )
        axes.append([[f"{override.get_key_element()}={value}"] for value in values])
    return axes


def _search(settings: Mapping[str, Any], swept: Sequence[Override], fixed: Sequence[str]) -> Sampler:
    try:
        from triform.sweeps.optuna import Search
    except ModuleNotFoundError as error:
        raise BadInput(f"hydra/sweeper=optuna needs {error.name}; install it: pip install 'triform[search]'") from error
    from triform.sweeps.space import questions

    for key, least in (("n_trials", 1), ("startup", 1), ("warmup", 0), ("seed", 0)):
        value = settings[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadInput(
                f"hydra.sweeper.{key}={value} is no whole number of at least {least}; set hydra.sweeper.{key} to one"
            )
    words = dict(word.lstrip("+").split("=", 1) for word in fixed if "=" in word and not word.startswith(("~", "--")))
    metric = settings["metric"]
    return Search(
        questions(settings["space"] or {}, swept, words),
        words,
        n_trials=settings["n_trials"],
        algorithm=settings["sampler"],
        pruner=settings["pruner"],
        startup=settings["startup"],
        warmup=settings["warmup"],
        seed=settings["seed"],
        n_objectives=len(metric) if isinstance(metric, list) else 1,
    )


def read_list(settings: Mapping[str, Any]) -> list[list[str]]:
    """The jobs of a file: overrides of one on each line, quoted as in a shell; `#` begins a comment.

    Raises:
        BadInput: the file is missing, has no job, or a line cannot be read.
    """
    file = settings["file"]
    if file is None:
        raise BadInput("hydra.sweeper.file is not set; name a file with the overrides of one job on each line")
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"hydra.sweeper.file={file} cannot be read: {one_line(error)}") from error
    jobs = []
    for number, line in enumerate(lines, start=1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise BadInput(f"{file}:{number}: {one_line(error)}") from error
        if wrong := [word for word in words if not re.match(r"~|[^=]+=", word)]:
            raise BadInput(f"{file}:{number}: {wrong[0]} cannot be read as key=value; write the overrides of one job")
        if words:
            jobs.append(words)
    if not jobs:
        raise BadInput(f"hydra.sweeper.file={file} holds no job; write the overrides of one on each line")
    return jobs
