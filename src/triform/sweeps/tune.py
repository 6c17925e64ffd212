"""Variants that are each judged at their own best value of a key: all are tried alike first, then run with all seeds.

Nobody's result is that of a learning rate which happened to suit another (Choi et al. 2019,
https://arxiv.org/abs/1910.05446, on optimizers: who is tuned longer wins).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Override

from triform.run.compose import keys
from triform.run.errors import BadInput, nearest
from triform.sweeps.manifest import FAILED, FINAL, OVER, PREEMPTED, RUNNING, TUNING, WAITING, Job, Manifest, SweepFolder
from triform.sweeps.samplers import Grid, Interval, Sampler, axes_of, kind_of, values_of
from triform.sweeps.view import chosen_lines, judged

UNSEEN = "trainer.test"
"""The key that leaves test data unseen."""


@dataclass(frozen=True)
class Untuned:
    """A variant, and what it is tried at.

    Args:
        words: its overrides.
        values: of the tuned key, as they follow `key=`.
    """

    words: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """What a job keeps of it, and people read."""
        return " ".join(self.words) or "as it is"


class Tuned(Sampler):
    """First one run of each variant at each value, without a look at test data; then all seeds at its best value.

    The later runs of a variant begin when its own trials are over. What is known stands in the sweep's record alone:
    where it is taken up with other values or after a retry and another value is best now, runs at the former one stay
    in their folders, count no more, and are marked so.

    Args:
        key: what is tuned.
        seeds: of the runs that are compared.
        seed: of the trials.

    Raises:
        BadInput: a variant has fewer than two values, or `seed` is one of `seeds`.
    """

    adaptive = True

    def __init__(self, variants: Sequence[Untuned], key: str, seeds: Sequence[str], seed: int) -> None:
        for variant in variants:
            if len(variant.values) < 2:
                raise BadInput(
                    f"compare.tune={key}: {variant.name} has one value, {variant.values[0]}; set compare.trials to 2 "
                    f"or more, or type several: {key}=a,b"
                )
        if str(seed) in seeds:
            raise BadInput(
                f"compare.seed={seed} is a seed of the runs that are compared, too: the best of the trials would be "
                "among them; set compare.seed to another number"
            )
        self.variants, self.key, self.seeds, self.seed = tuple(variants), key, tuple(seeds), seed
        self._jobs: list[Job] = []
        self._out: set[int] = set()

    def example(self) -> list[str] | None:
        first = next(iter(self.variants), None)
        return None if first is None else [*first.words, f"{self.key}={first.values[0]}", f"seed={self.seed}"]

    def begin(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)

    def open(self, folder: SweepFolder, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._jobs = manifest.jobs
        assert manifest.tuning is not None
        manifest.tuning["seeds"] = list(self.seeds)
        self._choose()

    def ask(self, number: int) -> list[str] | None:
        job = self.job(number, [])
        return None if job is None else job.varied

    def foreseen(self, number: int, fixed: Sequence[str]) -> Job | None:
        for variant in self.variants:
            for value in variant.values:
                if self._trial(variant, value) is None:
                    job = self._made(number, fixed, variant, value, self.seed, TUNING)
                    self._jobs.append(job)
                    return job
        return None

    def job(self, number: int, fixed: Sequence[str]) -> Job | None:
        for variant in self.variants:
            value = self._chosen(variant)
            if value is None:
                continue
            for seed in self.seeds:
                known = self._run(variant, value, seed)
                if known is None:
                    known = self._made(number, fixed, variant, value, seed, FINAL)
                elif known.number in self._out or known.status not in (WAITING, PREEMPTED):
                    continue
                self._out.add(known.number)
                return known
        return None

    def wants(self, job: Job) -> bool:
        if job.status != RUNNING and (job.replaced or (job.stage == FINAL and self._chosen_for(job) is None)):
            return False
        self._out.add(job.number)
        return True

    def has_more(self) -> bool:
        return any(
            not self._is_tried(variant)
            or (
                (value := self._chosen(variant)) is not None
                and any(self._run(variant, value, seed) is None for seed in self.seeds)
            )
            for variant in self.variants
        )

    def tell(self, number: int, status: str, figure: float | None) -> None:
        self._choose()

    def conclusions(self) -> list[str]:
        return chosen_lines(self.manifest)

    def _made(self, number: int, fixed: Sequence[str], variant: Untuned, value: str, seed: object, stage: str) -> Job:
        own = {self.key, "seed", *([UNSEEN] if stage == TUNING else [])}
        shared = [word for word in fixed if word.lstrip("+").partition("=")[0] not in own]
        varied = [*variant.words, f"{self.key}={value}", f"seed={seed}"]
        hidden = [f"{UNSEEN}=false"] if stage == TUNING else []
        return Job(number, varied, [*shared, *varied, *hidden], stage=stage, variant=variant.name, value=value)

    def _of(self, variant: Untuned, stage: str) -> list[Job]:
        return [job for job in self._jobs if job.stage == stage and job.variant == variant.name]

    def _trial(self, variant: Untuned, value: str) -> Job | None:
        return next((job for job in self._of(variant, TUNING) if job.value == value), None)

    def _run(self, variant: Untuned, value: str | None, seed: str) -> Job | None:
        word = f"seed={seed}"
        return next((job for job in self._of(variant, FINAL) if job.value == value and word in job.varied), None)

    def _is_tried(self, variant: Untuned) -> bool:
        trials = [self._trial(variant, value) for value in variant.values]
        return all(job is not None and job.status in (*OVER, FAILED) for job in trials)

    def _chosen(self, variant: Untuned) -> str | None:
        """The best value of a variant; None: it is not known yet, or none has a finite figure."""
        found = (self.manifest.tuning or {})["chosen"].get(variant.name)
        return found["value"] if found is not None and self._is_tried(variant) else None

    def _chosen_for(self, job: Job) -> str | None:
        variant = next((one for one in self.variants if one.name == job.variant), None)
        return None if variant is None else self._chosen(variant)

    def _choose(self) -> None:
        """Write down the best value of each variant that has been tried at all of its own, and which jobs count."""
        sign = 1 if self.manifest.monitor["mode"] == "min" else -1
        chosen: dict[str, dict[str, Any]] = {}
        for variant in self.variants:
            if not self._is_tried(variant):
                continue
            figures: dict[str, float] = {}
            for value in variant.values:
                job = self._trial(variant, value)
                figure = judged(self.folder, self.manifest, job) if job is not None and job.status in OVER else None
                if figure is not None:
                    figures[value] = figure
            chosen[variant.name] = {"value": None, "tried": len(variant.values), "ended": len(figures)}
            if figures:
                best = min(figures, key=lambda value: sign * figures[value])
                chosen[variant.name] |= {"value": best, "figure": figures[best], "edge": edge(best, variant.values)}
        assert self.manifest.tuning is not None
        self.manifest.tuning["chosen"] = chosen
        values = {variant.name: variant.values for variant in self.variants}
        for job in self._jobs:
            at = chosen.get(job.variant, {}).get("value")
            seeds = {f"seed={seed}" for seed in self.seeds}
            job.replaced = (
                job.value not in values.get(job.variant, ())
                if job.stage == TUNING
                else (at is not None and job.value != at) or job.variant not in values or not seeds & {*job.varied}
            )


def edge(value: str, values: Sequence[str]) -> str | None:
    """Whether a value is the "smallest" or "largest" of several numbers; None: neither, or they are words."""
    try:
        numbers = [float(one) for one in values]
    except ValueError:
        return None
    return {min(numbers): "smallest", max(numbers): "largest"}.get(float(value))


def tuned(
    compare: Mapping[str, Any],
    settings: Mapping[str, Any],
    swept: Sequence[Override],
    fixed: Sequence[str],
    config_of: Callable[[list[str]], Mapping[str, Any]],
) -> Tuned:
    """The comparison that `compare.tune` asks for.

    Args:
        compare: the keys of `conf/compare`.
        settings: `hydra.sweeper`, which chooses the variants.
        swept: overrides with several values: of `seed`, of the tuned key, and of what is compared.
        fixed: overrides that all jobs share.
        config_of: the config of the overrides of one variant.

    Raises:
        BadInput: these do not fit, or a value is wrong.
    """
    key = check(compare)
    if (kind := kind_of(settings)) not in ("grid", "list"):
        raise BadInput(f"compare.tune={key} is a search already; leave hydra/sweeper={kind} out, or compare.tune")
    by_key = {one.get_key_element(): one for one in swept}
    mine, seeds_swept = by_key.pop(key, None), by_key.pop("seed", None)
    single = {word.lstrip("+").partition("=")[0]: word.partition("=")[2] for word in fixed}
    seeds = [single["seed"]] if "seed" in single else None if seeds_swept is None else values_of(seeds_swept)
    if isinstance(seeds, Interval):
        raise BadInput("seed: a range has no end of seeds; list some, as seed=0,1,2")
    found: list[Untuned] = []
    grid = Grid(axes_of(settings, list(by_key.values())))
    grid.begin([])
    while (words := grid.ask(len(found))) is not None:  # each once
        own = [word for word in words if word.partition("=")[0] == key]
        if taken := [word for word in words if word.startswith("seed=")] or (own if mine is not None else []):
            raise BadInput(f"{taken[0]} in a line of hydra.sweeper.file: compare.tune={key} chooses it; leave it out")
        values = _values(key, mine, words, compare, fixed, config_of)
        words = [word for word in words if word not in own]
        if any(variant.words == tuple(words) for variant in found):
            raise BadInput(
                f"hydra.sweeper.file: two lines differ in {key} alone, which compare.tune={key} chooses; leave one out"
            )
        found.append(Untuned(tuple(words), tuple(values)))
    if seeds is None:
        seeds = [str(config_of([*fixed, *found[0].words])["seed"])]
    return Tuned(found, key, list(dict.fromkeys(seeds)), compare["seed"])


def check(compare: Mapping[str, Any]) -> str:
    """The tuned key, if the keys of `conf/compare` have values that mean something.

    Raises:
        BadInput: one of them has none.
    """
    key, trials, factor, seed = (compare[name] for name in ("tune", "trials", "factor", "seed"))
    if not isinstance(key, str) or not key or key == "seed":
        raise BadInput(f"compare.tune={key} is no key to be tuned; name one, such as optimizer.lr")
    for name, value, least in (("trials", trials, 2), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadInput(f"compare.{name}={value} is no whole number of at least {least}; set compare.{name} to one")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 < factor < math.inf:
        raise BadInput(f"compare.factor={factor} is no number above 1; set compare.factor to one, such as 2")
    return key


def _values(
    key: str,
    typed: Override | None,
    words: Sequence[str],
    compare: Mapping[str, Any],
    fixed: Sequence[str],
    config_of: Callable[[list[str]], Mapping[str, Any]],
) -> list[str]:
    """What a variant is tried at: values that were typed, points of a range that was, or some around its own."""
    trials = compare["trials"]
    if typed is not None:
        found = values_of(typed)
        return spaced(found, trials) if isinstance(found, Interval) else list(dict.fromkeys(found))
    if "/" in key:
        raise BadInput(f"compare.tune={key}: a choice of parts has no values around it; type some: {key}=a,b")
    config = config_of([*fixed, *words])
    own: Any = config
    for name in key.split("."):
        if not isinstance(own, Mapping) or name not in own:
            near, variant = nearest(key, keys(config)), f" (in the run with {' '.join(words)})" if words else ""
            raise BadInput(f"compare.tune={key}: no such key{near}; name one of the config{variant}")
        own = own[name]
    if isinstance(own, bool) or not isinstance(own, int | float) or not own > 0:
        shown = "null" if own is None else str(own).lower() if isinstance(own, bool) else own
        raise BadInput(f"compare.tune={key}: around {shown} there are no values to try; type them: {key}=a,b,c")
    return around(key, own, trials, compare["factor"])


def around(key: str, own: float, trials: int, factor: float) -> list[str]:
    """Values of which each is the one below times `factor`, with `own` in the middle; of an even number the further
    one lies above. More trials keep the values of fewer.

    Raises:
        BadInput: whole numbers that lie so close together are not so many.
    """
    powers = range(-((trials - 1) // 2), trials // 2 + 1)
    exact = [own * factor**power for power in powers]
    values = [str(max(round(value), 1)) if isinstance(own, int) else f"{value:.6g}" for value in exact]
    if len(set(values)) < trials:
        raise BadInput(
            f"compare.tune={key}: whole numbers around {own} by factors of {factor:g} are not {trials}; type them: "
            f"{key}=a,b,c, or set a larger compare.factor"
        )
    return values


def spaced(found: Interval, trials: int) -> list[str]:
    """Points of a range at equal distances, its ends included; of whole numbers perhaps fewer."""
    shares = [i / (trials - 1) for i in range(trials)]
    if found.log:
        exact = [math.exp((1 - s) * math.log(found.start) + s * math.log(found.end)) for s in shares]
    else:
        exact = [(1 - s) * found.start + s * found.end for s in shares]
    return list(dict.fromkeys(found.word(value) for value in exact))
