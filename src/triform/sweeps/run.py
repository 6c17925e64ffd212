"""A sweep from what was typed, or from its folder, to the table at its end."""

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from triform.run.errors import BadInput, nearest, one_line
from triform.run.folder import check_inside, read_mapping
from triform.run.garbage import look_again
from triform.run.help import conf_dir
from triform.run.ranks import handling, warm
from triform.run.recipe import CONFIG_NAME
from triform.run.secrets import check_typed
from triform.run.values import check_name
from triform.sweeps.compose import Composed, compose_job, config_of, figures_of, objectives_of
from triform.sweeps.driver import Driver, exit_code
from triform.sweeps.launcher import Launcher
from triform.sweeps.manifest import FAILED, OVER, RUNNING, WAITING, Job, Manifest, SweepFolder, counted, held
from triform.sweeps.samplers import Sampler, is_setting, kind_of, sampler, split
from triform.sweeps.tune import Tuned, tuned
from triform.sweeps.view import View, conclude

NOT_PART = ("traceback", "trust", "paths.cache")
"""Keys that change nothing of what a sweep finds out."""


def sweep(config: DictConfig, arguments: Sequence[str]) -> None:
    """Run every job that `arguments` stand for; the same command again goes on where the sweep was.

    Args:
        config: Hydra's config of the sweep, which knows where configs are looked for.

    Raises:
        ValueError: bad input in any of the jobs; nothing has run.
        SystemExit: always, with the sweep's exit code, because Hydra drops what a sweeper returns.
    """
    hydra = config.hydra
    words = [word for word in arguments if not is_setting(word)]
    fixed, swept = split(words)
    flags = _flags(hydra)
    settings = _settings(hydra.sweeper)
    if settings.get("file") is not None:
        settings["file"] = os.path.abspath(os.path.expanduser(settings["file"]))
    launcher = _settings(hydra.launcher) | {"launcher": str(hydra.runtime.choices.get("hydra/launcher"))}
    tuning = _tuning(config)
    chosen = chosen_by(tuning, settings, swept, [*fixed, *flags])
    manifest = Manifest(
        typed=[*arguments, *(word for word in map(str, hydra.overrides.hydra) if word != "hydra.mode=MULTIRUN")],
        key=_key(settings, fixed, flags, swept, tuning),
        fixed=[*fixed, *flags],
        sweeper=settings,
        launcher=launcher,
        monitor={},
        tuning=tuning,
    )
    raise SystemExit(start(manifest, chosen, settings.get("name"), retry=bool(settings.get("retry"))))


def chosen_by(
    tuning: Mapping[str, Any] | None, settings: Mapping[str, Any], swept: Sequence[Override], fixed: Sequence[str]
) -> Sampler:
    """What chooses the jobs of a sweep.

    Args:
        tuning: the keys of `conf/compare`, where `tune` is set.
        settings: `hydra.sweeper`.
        fixed: overrides that all jobs share, with flags.

    Raises:
        BadInput: these do not fit, or there is no job in it.
    """
    return sampler(settings, swept, fixed) if tuning is None else tuned(tuning, settings, swept, fixed, config_of)


def start(manifest: Manifest, chosen: Sampler, name: str | None, retry: bool) -> int:
    """Begin a sweep, or go on with the one that has its key, and return the exit code.

    Args:
        name: of its folder; None: that of its runs, and its key.
        retry: run failed jobs once more.

    Raises:
        ValueError: bad input in any of the jobs; nothing has run.
    """
    warm_up(manifest.launcher)
    example = chosen.example()
    if example is None:
        raise BadInput("the sweep has no job; give a key several values, as seed=0,1")
    check_typed(manifest.typed)
    probe = config_of([*manifest.fixed, *example])
    trust = list(probe["trust"])
    folder = _folder(probe, manifest, name)
    running = launcher_of(manifest.launcher, folder, chosen.adaptive)
    with ExitStack() as stack:
        known = None
        if folder.manifest.exists():
            stack.enter_context(held(folder))
            known = folder.read()
            if known.key != manifest.key:
                raise BadInput(
                    f"{folder.path} is another sweep: {' '.join(known.typed)}; choose another hydra.sweeper.name, or "
                    "leave it out"
                )
            manifest.jobs = known.jobs
        elif folder.path.is_dir() and any(folder.path.iterdir()):
            raise BadInput(f"{folder.path} is there, but no sweep; choose another hydra.sweeper.name, or leave it out")
        composed = plan(manifest, chosen, running, trust, reconcile(folder, manifest))
        if known is not None and known.sweeper.get("metric") == manifest.sweeper.get("metric"):
            manifest.monitor, manifest.further = known.monitor, known.further
        else:
            jobs = list(composed.values()) or [
                compose_job(Job(0, words, [*manifest.fixed, *words]), running, trust) for words in chosen.examples()
            ]
            manifest.monitor, *manifest.further = objectives_of(manifest.sweeper, jobs)
        if known is None:
            _make(folder)
            stack.enter_context(held(folder))
        return drive(folder, manifest, chosen, running, composed, trust, retry)


def go_on(
    folder: SweepFolder,
    trust: Sequence[str],
    retry: bool = False,
    launcher: Mapping[str, Any] | None = None,
    widen: Sequence[str] = (),
    trials: int = 0,
) -> int:
    """Go on with the sweep in a folder and return the exit code.

    Args:
        trust: packages besides triform's own that its configs may name.
        retry: run failed jobs once more.
        launcher: settings that replace those it was begun with.
        widen: further values of its keys, as `seed=3,4`: every combination with them is added.
        trials: jobs to add to a search.

    Raises:
        ValueError: bad input; nothing has run.
    """
    with held(folder):
        manifest = folder.read()
        manifest.launcher |= launcher or {}
        warm_up(manifest.launcher)
        chosen = widened(manifest, widen, trials)
        running = launcher_of(manifest.launcher, folder, chosen.adaptive)
        composed = plan(manifest, chosen, running, trust, reconcile(folder, manifest))
        return drive(folder, manifest, chosen, running, composed, trust, retry)


def widened(manifest: Manifest, widen: Sequence[str], trials: int) -> Sampler:
    """What chooses the further jobs of a sweep.

    Raises:
        BadInput: the sweep has no such key, or it cannot be widened like this.
    """
    settings = manifest.sweeper
    if trials and manifest.tuning is not None:
        manifest.tuning["trials"] += trials
    elif trials:
        count = next((key for key in ("n_jobs", "n_trials") if key in settings), None)
        if count is None:
            raise BadInput("--trials adds jobs to a search, and this sweep is none; add values instead: key=a,b")
        settings[count] += trials
    chosen = chosen_by(manifest.tuning, settings, split(_task_words(manifest.typed))[1], manifest.fixed)
    if not widen:
        return chosen
    if (kind := kind_of(settings)) != "grid":
        raise BadInput(f"a {kind} sweep has no values to add to; see triform sweep extend --help")
    alone, several = split(widen)
    values: dict[str, list[str]] = {"seed": list(chosen.seeds)} if isinstance(chosen, Tuned) else {}
    for job in manifest.jobs:
        for word in job.varied:
            key, _, value = word.partition("=")
            if value not in values.setdefault(key, []) and not (job.stage and key == "seed"):
                values[key].append(value)
    for word in [*alone, *(f"{one.get_key_element()}={v}" for one in several for v in one.sweep_string_iterator())]:
        key, _, value = word.partition("=")
        if key not in values:
            raise BadInput(f"{word}: {key} does not vary in this sweep{nearest(key, values)}; {', '.join(values)} do")
        if value not in values[key]:
            values[key].append(value)
    if isinstance(chosen, Tuned) and chosen.key not in {word.partition("=")[0] for word in (*widen, *manifest.typed)}:
        del values[chosen.key]  # each variant's own
    manifest.typed = [
        *(word for word in manifest.typed if word.partition("=")[0] not in values),
        *(f"{key}={','.join(all_of) if len(all_of) > 1 else f'choice({all_of[0]})'}" for key, all_of in values.items()),
    ]
    return chosen_by(manifest.tuning, settings, split(_task_words(manifest.typed))[1], manifest.fixed)


def plan(
    manifest: Manifest, chosen: Sampler, running: Launcher, trust: Sequence[str], jobs: Sequence[Job]
) -> dict[int, Composed]:
    """Add the jobs that can be known before any has run, and compose and check those that have not begun.

    Args:
        jobs: of the sweep so far.

    Raises:
        BadInput: one of them cannot run.
    """
    chosen.begin(jobs)
    number = max((job.number for job in manifest.jobs), default=-1) + 1
    while (job := chosen.foreseen(number, manifest.fixed)) is not None:
        manifest.jobs.append(job)
        number += 1
    return {job.number: compose_job(job, running, trust) for job in manifest.counting if job.status == WAITING}


def reconcile(folder: SweepFolder, manifest: Manifest) -> list[Job]:
    """The jobs, with what they have done since their last driver wrote it down."""
    for job in manifest.jobs:
        summary = folder.run(job.number).read_summary()
        status = summary.get("status")
        if job.attempts and job.status not in OVER and status in OVER:
            job.status, job.error, job.where, job.id = status, None, None, None
            job.seconds = job.seconds or float(summary.get("seconds") or 0.0)
        elif job.status == RUNNING and status == FAILED:
            job.status, job.error, job.where, job.id = FAILED, summary.get("error"), summary.get("where"), None
    return manifest.jobs


def drive(
    folder: SweepFolder,
    manifest: Manifest,
    chosen: Sampler,
    running: Launcher,
    composed: Mapping[int, Composed],
    trust: Sequence[str],
    retry: bool,
) -> int:
    """Run what has not ended, show how it went, make the report; returns the exit code."""
    goes_on = f"; goes on: {counted(manifest.jobs)}" if folder.manifest.exists() else ""
    print(f"sweep: {len(manifest.jobs)} runs in {folder.path}{goes_on}", flush=True)
    for job in manifest.jobs:
        if retry and job.status == FAILED:
            job.status = WAITING
    folder.write(manifest)
    chosen.open(folder, manifest)
    if manifest.tuning is not None:
        folder.write(manifest)  # with which jobs count now
    again = [job for job in manifest.jobs if job.status not in (*OVER, FAILED) and chosen.wants(job)]
    look_again()
    asked: list[int] = []
    with handling(lambda number, frame: asked.append(number)):
        with View(folder, manifest) as view:
            Driver(folder, manifest, chosen, running, view, composed, trust, asked).run(again)
        compare(folder, manifest)
        conclude(folder, manifest, chosen.conclusions())
    return exit_code(manifest.counting, chosen.has_more())


def compare(folder: SweepFolder, manifest: Manifest) -> None:
    """Make the comparison of the sweep's runs, which nothing of the sweep depends on."""
    if not any(job.status in OVER for job in manifest.jobs):
        return
    from triform.analysis.compare import report
    from triform.analysis.compare.tracker import publish

    try:
        judge = (None, None) if manifest.tuning else (manifest.monitor["name"], manifest.monitor["mode"])
        made = report([folder.path], folder.path, *judge)
        print(f"report: {made.page}", flush=True)
        publish(made.comparison, made.folder, [file for file in made.files if file.suffix == ".png"])
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        print(f"warning: the runs are kept, their comparison failed ({reason})", file=sys.stderr, flush=True)


def warm_up(settings: Mapping[str, Any]) -> None:
    """Have the server of local jobs import what they need, while this process does the same to check them."""
    if settings["launcher"] == "local":
        from triform.sweeps.local import PRELOAD

        warm(PRELOAD)


def launcher_of(settings: Mapping[str, Any], folder: SweepFolder, adaptive: bool) -> Launcher:
    """What `hydra.launcher` asks for.

    Args:
        adaptive: jobs become known one after the other.

    Raises:
        BadInput: there is no such launcher, or its settings are wrong.
    """
    kind = settings["launcher"]
    if kind == "local":
        from triform.sweeps.local import Local, visible_gpus

        jobs = None if settings["jobs"] == "auto" else _number(settings, "jobs")
        return Local(jobs, _number(settings, "per_gpu"), visible_gpus())
    if kind == "slurm":
        from triform.sweeps.sbatch import Batch
        from triform.sweeps.slurm import Slurm

        return Slurm(
            sweep=folder.path,
            array=not adaptive,
            batch=Batch.of(settings),
            limit=_number(settings, "limit"),
            cancel=bool(settings["cancel"]),
        )
    raise BadInput(f"hydra/launcher={kind}: no launcher of triform's; choose hydra/launcher=local or slurm")


def _number(settings: Mapping[str, Any], key: str) -> int:
    value = settings[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"hydra.launcher.{key}={value} is no whole number; set hydra.launcher.{key} to one, such as 1")
    return value


def settings_of(launcher: str | None, jobs: str | None) -> dict[str, Any]:
    """Settings of a launcher that a command names, and of runs at once; what is not named stays as it was.

    Raises:
        BadInput: there is no such launcher.
    """
    found: dict[str, Any] = {}
    if launcher is not None:
        file = conf_dir() / "hydra" / "launcher" / f"{launcher}.yaml"
        names = [one.stem for one in file.parent.glob("*.yaml")]
        if launcher not in names:
            raise BadInput(f"--launcher {launcher}: no such launcher{nearest(launcher, names)}; use {', '.join(names)}")
        found = {key: value for key, value in read_mapping(file).items() if key != "_target_"} | {"launcher": launcher}
    if jobs is not None:
        found["jobs"] = int(jobs) if jobs.isdigit() else jobs
    return found


def monitor_of_config(config: Mapping[str, Any]) -> dict[str, str]:
    """The figure that a run of this config is judged by: its data is prepared for that."""
    from triform.run.job import checked

    name, mode = figures_of(config, checked(config))[1]
    return {"name": name, "mode": mode}


def _settings(node: DictConfig) -> dict[str, Any]:
    found = OmegaConf.to_container(node, resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items() if key != "_target_"}


def _flags(hydra: DictConfig) -> list[str]:
    """The flags that say where else configs are, so that a job can be repeated from anywhere."""
    folders = [
        Path(source.path)
        for source in hydra.runtime.config_sources
        if source.schema == "file" and source.provider not in ("main", "hydra")
    ]
    flags = [f"--config-dir={folder}" for folder in folders[:1]]
    if hydra.job.config_name != CONFIG_NAME:
        flags.append(f"--config-name={hydra.job.config_name}")
    return flags


def _task_words(typed: Sequence[str]) -> list[str]:
    return [word for word in typed if not is_setting(word)]


def _tuning(config: DictConfig) -> dict[str, Any] | None:
    """The keys of `conf/compare` where `tune` is set."""
    found = OmegaConf.to_container(config.compare, resolve=True) if "compare" in config else {}
    assert isinstance(found, dict)
    return None if found.get("tune") is None else {str(key): value for key, value in found.items()} | {"chosen": {}}


def _key(
    settings: Mapping[str, Any],
    fixed: Sequence[str],
    flags: Sequence[str],
    swept: Sequence[Override],
    tuning: Mapping[str, Any] | None,
) -> str:
    """Six hexadecimal digits of what a sweep is about: all but the values of its keys, so that these may grow.

    A search is about its ranges too: what it learned in others is of no use. Where variants are tuned, seeds and values
    of the tuned key may grow from one as well.
    """
    own = () if tuning is None else ("seed", tuning["tune"])
    aside = (*NOT_PART, *own[:1])
    same = sorted(word for word in fixed if word.partition("=")[0].lstrip("+") not in aside)
    keys = sorted(one.get_key_element() for one in swept if one.get_key_element() not in own)
    about = [settings["sampler"], settings.get("file"), settings.get("seed"), same, sorted(flags), keys]
    if kind_of(settings) == "optuna":
        about += [sorted(str(one.input_line) for one in swept), *(settings[key] for key in ("space", "metric", "mode"))]
    if tuning is not None:
        about += [tuning["tune"], tuning["seed"]]
    return hashlib.blake2b(json.dumps(about).encode(), digest_size=3).hexdigest()


def _folder(config: Mapping[str, Any], manifest: Manifest, name: str | None) -> SweepFolder:
    """Where a sweep is, or will be: `NAME-KEY` in `paths.outputs`, unless it is given a name."""
    outputs = Path(config["paths"]["outputs"])
    parent = outputs / "sweeps"
    if name is not None:
        name = str(name)
        try:
            check_name(name)
        except BadInput as error:
            raise BadInput(f"hydra.sweeper.{one_line(error).replace('set name', 'set hydra.sweeper.name')}") from error
        check_inside(parent / name, outputs)
        return SweepFolder(parent / name)
    check_name(config["name"])
    for known in sorted(parent.glob(f"*-{manifest.key}")):
        if (known / "manifest.json").is_file():
            return SweepFolder(known)
    check_inside(parent / f"{config['name'][:90]}-{manifest.key}", outputs)
    return SweepFolder(parent / f"{config['name'][:90]}-{manifest.key}")


def _make(folder: SweepFolder) -> None:
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"paths.outputs: cannot make the sweep's folder {folder.path}: {error.strerror or error}"
        ) from error
