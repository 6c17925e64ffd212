"""Searches by Optuna (Akiba et al. 2019, https://arxiv.org/abs/1907.10902): the next job is learned from those before,
and a running one is given up where it goes badly."""

import io
import logging
import math
import os
import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cmaes  # noqa: F401  which Optuna imports where it is late to say that it is missing
import numpy as np
import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, TrialState

from triform.run.errors import BadInput, nearest
from triform.sweeps.manifest import FAILED, FINISHED, OVER, PREEMPTED, PRUNED, Job, Manifest, SweepFolder
from triform.sweeps.samplers import Interval, Sampler
from triform.sweeps.space import Question, examples

log = logging.getLogger(__name__)

ALGORITHMS = ("tpe", "cmaes", "random")
PRUNERS = ("median", "hyperband", "none")

JOURNAL = "optuna.journal"
"""File in a sweep's folder with all that Optuna knows: `optuna-dashboard` reads it too."""

STUDY = "sweep"
ATTEMPTS = 30
"""How often to ask for a job that differs from all before; after that the space counts as exhausted."""


class Search(Sampler):
    """Asks Optuna for each job, and tells it what became of it.

    Draws depend on the seed, the job's number and what has ended by then, not on how often the sweep was taken up.
    Steps of a trial are its validations, counted from 1, so that jobs with unequal batches compare.

    Args:
        questions: what is asked, in this order.
        fixed: key -> word, of what all jobs share.
        n_trials: jobs in all.
        algorithm: "tpe" (Bergstra et al. 2011), "cmaes" (Hansen 2016; words and conditional keys are drawn at random)
            or "random".
        pruner: "median", "hyperband" (Li et al. 2018, asynchronous as in Li et al. 2020) or "none".
        startup: jobs that end well before "tpe" learns and before a job is pruned; "hyperband" waits for one.
        warmup: validations of a job during which "median" does not prune it.
        seed: of what is drawn.
        n_objectives: figures that are weighed up against each other.

    Raises:
        BadInput: there is no such algorithm or pruner, or these do not go together.
    """

    adaptive = watches = True

    def __init__(
        self,
        questions: Sequence[Question],
        fixed: Mapping[str, str],
        n_trials: int,
        algorithm: str,
        pruner: str,
        startup: int,
        warmup: int,
        seed: int,
        n_objectives: int,
    ) -> None:
        for key, word, words in (("sampler", algorithm, ALGORITHMS), ("pruner", pruner, PRUNERS)):
            if word not in words:
                raise BadInput(
                    f"hydra.sweeper.{key}={word} is not known{nearest(str(word), words)}; there are {', '.join(words)}"
                )
        if n_objectives > 1 and algorithm == "cmaes":
            raise BadInput("hydra.sweeper.sampler=cmaes takes one figure; choose tpe, or name one hydra.sweeper.metric")
        if n_objectives > 1 and pruner != "none":
            raise BadInput(
                f"hydra.sweeper.pruner={pruner}: no job is given up for one of several figures; set "
                "hydra.sweeper.pruner=none"
            )
        self.questions, self.fixed, self.n_trials, self.n_objectives = questions, fixed, n_trials, n_objectives
        self.algorithm, self.pruner, self.startup, self.warmup, self.seed = algorithm, pruner, startup, warmup, seed
        self._trials: dict[int, int] = {}  # job -> its trial that runs
        self._jobs: dict[frozenset[str], int] = {}
        self._steps: dict[int, list[int]] = {}
        self._exhausted = False

    def example(self) -> list[str]:
        return self.examples()[0]

    def examples(self) -> list[list[str]]:
        return examples(self.questions, self.fixed)

    def begin(self, jobs: Sequence[Job]) -> None:
        self._jobs = {frozenset(job.varied): job.number for job in jobs}

    def open(self, folder: SweepFolder, manifest: Manifest) -> None:
        self.folder, self.objectives = folder, [manifest.monitor, *manifest.further]
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        journal = folder.path / JOURNAL
        try:
            self._storage = JournalStorage(Journal(journal))
            self._study = optuna.create_study(
                study_name=STUDY,
                storage=self._storage,
                directions=["minimize" if one["mode"] == "min" else "maximize" for one in self.objectives],
                pruner=self._pruner(),
                load_if_exists=True,
            )
            trials = self._study.get_trials(deepcopy=False)
        except (ValueError, KeyError, AssertionError) as error:
            raise BadInput(
                f"{journal} cannot be read ({error}); remove it, and what is known about the jobs is written anew"
            ) from error
        if self.algorithm == "cmaes":
            check_states(trials, journal)
        self._know(trials, manifest.jobs)

    def _know(self, trials: Sequence[FrozenTrial], jobs: Sequence[Job]) -> None:
        """Bring what Optuna knows in line with what became of the jobs, whoever was killed in between."""
        latest = {one.user_attrs["number"]: one for one in trials if "number" in one.user_attrs}
        numbers = {job.number for job in jobs}
        for trial in trials:
            if trial.state == TrialState.RUNNING and trial.user_attrs.get("number") not in numbers:
                self._study.tell(trial.number, state=TrialState.FAIL)  # it was never written down as a job
        for job in jobs:
            known = latest.get(job.number)
            if known is not None and known.state == TrialState.RUNNING:
                self._trials[job.number] = known.number
            if job.status not in (*OVER, FAILED):
                continue
            state, values = self._outcome(job.number, job.status)
            if known is None or known.state != state or (values is not None and known.values != values):
                self._end(job.number, state, values)

    def _sampler(self, number: int, attempt: int) -> optuna.samplers.BaseSampler:
        seed = int(np.random.SeedSequence([self.seed, number, attempt]).generate_state(1)[0])
        if self.algorithm == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        if self.algorithm == "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        conditional = any(question.when for question in self.questions)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # `group`
            return optuna.samplers.TPESampler(
                n_startup_trials=self.startup,
                seed=seed,
                multivariate=True if conditional else None,
                group=conditional,  # keys that are asked together are modelled together
                constant_liar=True,  # no two parallel jobs at one place
            )

    def _pruner(self) -> optuna.pruners.BasePruner:
        if self.pruner == "median":
            return optuna.pruners.MedianPruner(n_startup_trials=self.startup, n_warmup_steps=self.warmup + 1)
        return optuna.pruners.HyperbandPruner() if self.pruner == "hyperband" else optuna.pruners.NopPruner()

    def ask(self, number: int) -> list[str] | None:
        if number >= self.n_trials or self._exhausted:
            return None
        for attempt in range(ATTEMPTS):
            self._study.sampler = self._sampler(number, attempt)
            trial = self._study.ask()
            words = self._words(trial)
            twin = self._jobs.setdefault(frozenset(words), number)
            if twin == number:
                trial.set_user_attr("number", number)
                self._trials[number] = trial.number
                return words
            values = self._values(twin)  # the same config gives the same figures
            self._study.tell(trial, values, state=TrialState.COMPLETE if values else TrialState.FAIL)
        self._exhausted = True
        log.warning("the search has no job that differs from all before; it ends with %d", number)
        return None

    def has_more(self) -> bool:
        return len(self._jobs) < self.n_trials and not self._exhausted

    def _words(self, trial: optuna.Trial) -> list[str]:
        answers, words = dict(self.fixed), []
        for question in self.questions:
            if question.asked(answers):
                answers[question.key] = word_of(question, trial)
                words.append(f"{question.key}={answers[question.key]}")
        return words

    def tell(self, number: int, status: str, figure: float | None) -> None:
        if status == PREEMPTED:
            return
        try:
            self._end(number, *self._outcome(number, status))
        except OSError as error:
            log.warning("%s cannot be written: %s", self.folder.path / JOURNAL, error.strerror or error)

    def watch(self, number: int, step: int, figure: float) -> bool:
        if self.n_objectives > 1:
            return False
        steps = self._steps.setdefault(number, [])
        if step not in steps:
            steps.append(step)
        try:
            id = self._id(self._trial(number))
            if len(steps) not in self._storage.get_trial(id).intermediate_values:
                self._storage.set_trial_intermediate_value(id, len(steps), figure)
        except OSError as error:
            log.warning("%s cannot be written: %s", self.folder.path / JOURNAL, error.strerror or error)
            return False
        return bool(self._study.pruner.prune(self._study, self._storage.get_trial(id)))

    def conclusions(self) -> list[str]:
        if self.n_objectives == 1:
            return []
        names = ", ".join(one["name"] for one in self.objectives)
        numbers = sorted({one.user_attrs["number"] for one in self._study.best_trials if "number" in one.user_attrs})
        return [f"no other run is better in all of {names}: {', '.join(map(str, numbers)) or 'none has ended'}"]

    def _outcome(self, number: int, status: str) -> tuple[TrialState, list[float] | None]:
        values = self._values(number) if status == FINISHED else None
        if status == PRUNED and self.n_objectives == 1:
            return TrialState.PRUNED, None
        return (TrialState.COMPLETE, values) if values else (TrialState.FAIL, None)

    def _values(self, number: int) -> list[float] | None:
        """What a job came to, of each objective; None: one of them is missing or not finite."""
        summary = self.folder.run(number).read_summary()
        if summary.get("status") != FINISHED:
            return None
        found = {**summary, **(summary.get("best") or {})}
        values = [found.get(one["name"]) for one in self.objectives]
        finite = [float(one) for one in values if isinstance(one, int | float) and math.isfinite(one)]
        return finite if len(finite) == len(values) else None

    def _end(self, number: int, state: TrialState, values: list[float] | None) -> None:
        self._study.tell(self._trial(number), values, state=state)
        del self._trials[number]

    def _trial(self, number: int) -> int:
        """The number of a job's trial that runs. Optuna closes one that failed for good: one like it is added."""
        if number not in self._trials:
            words = next(words for words, known in self._jobs.items() if known == number)
            given = dict(word.split("=", 1) for word in words)
            answers, asked = dict(self.fixed), []
            for one in self.questions:
                if one.key in given and one.asked(answers):
                    answers[one.key] = given[one.key]
                    asked.append(one)
            self._study.enqueue_trial({one.name: parameter_of(one, given[one.key]) for one in asked})
            trial = self._study.ask()
            self._words(trial)
            trial.set_user_attr("number", number)
            self._trials[number] = trial.number
        return self._trials[number]

    def _id(self, trial: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._storage.get_study_id_from_name(STUDY), trial)


def word_of(question: Question, trial: optuna.Trial) -> str:
    """A trial's answer, as it follows `key=`; ordered words go by their place."""
    values = question.values
    if not isinstance(values, Interval):
        if question.ordered:
            return values[trial.suggest_int(question.name, 0, len(values) - 1)]
        return trial.suggest_categorical(question.name, values)
    if values.whole:
        return values.word(trial.suggest_int(question.name, int(values.start), int(values.end), log=values.log))
    return values.word(trial.suggest_float(question.name, values.start, values.end, log=values.log))


def parameter_of(question: Question, word: str) -> Any:
    """The other way round."""
    if isinstance(question.values, Interval):
        return int(word) if question.values.whole else float(word)
    return question.values.index(word) if question.ordered else word


class Unlocked:
    """No lock: only who holds that of the sweep writes here, and none is left behind by who was killed."""

    def acquire(self) -> bool:
        """Does nothing."""
        return True

    def release(self) -> None:
        """Does nothing."""


class Journal(JournalFileBackend):
    """Optuna's journal in a file that holds whole lines alone, also after a kill or on a full disk."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            content = path.read_bytes()
            os.truncate(path, content.rfind(b"\n") + 1)
        self._path = path
        super().__init__(str(path), Unlocked())  # type: ignore[arg-type]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write lines, all or none of them."""
        size = self._path.stat().st_size
        try:
            super().append_logs(logs)
        except OSError:
            os.truncate(self._path, size)
            raise


STATE_PARTS = {
    *(("cmaes._cma", "CMA"), ("numpy", "dtype"), ("numpy", "ndarray")),
    *(("numpy._core.multiarray", "scalar"), ("numpy._core.multiarray", "_reconstruct")),
}
"""All that the state of CMA-ES is made of."""


def check_states(trials: Sequence[FrozenTrial], journal: Path) -> None:
    """Refuse a journal whose states of CMA-ES, which Optuna unpickles, hold anything else: it may be somebody else's.

    Raises:
        BadInput: one of them does.
    """
    for trial in trials:
        parts = {key: text for key, text in trial.system_attrs.items() if key.startswith("cma:optimizer:")}
        if not parts:
            continue
        try:
            text = "".join(parts[f"cma:optimizer:{place}"] for place in range(len(parts)))
            _Known(io.BytesIO(bytes.fromhex(text))).load()
        except Exception as error:
            raise BadInput(
                f"{journal}: the state in trial {trial.number} is not one of CMA-ES ({error}); remove the file: what "
                "is known about the jobs is written anew"
            ) from error


class _Known(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STATE_PARTS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)
