"""Fair comparisons: a run that equals another one in parameters, FLOPs, tokens or seconds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triform.run.check import check_content, check_keys
from triform.run.cli import config_folders, parsed
from triform.run.errors import BadInput, nearest, one_line
from triform.run.folder import RunFolder, read_mapping
from triform.run.help import conf_dir, groups

if TYPE_CHECKING:
    from torch import nn

    from triform.data.prepare import Prepared
    from triform.run.sketch import Sketch

SIZES = ("d_ff", "d_model", "n_layers")
"""Keys of `model` that can be solved for."""

MEASURED = {
    "params": ("parameters", "parameters"),
    "flops": ("flops_per_token", "FLOPs per token"),
    "tokens": ("tokens", "tokens"),
    "seconds": ("seconds", "seconds"),
}
"""What can be made equal: its key in a run's summary, and its name."""

DEEPEST = 1000
"""Layers that are tried at most: building more takes seconds."""
WIDEST = 2**24
"""Steps of a width that are tried at most."""

Find = Callable[[Mapping[str, Any]], "Prepared | None"]
"""The data of a config; None: it is not prepared yet, and its vocabulary is assumed."""


@dataclass(frozen=True)
class Match:
    """The keys of `conf/match`; their meaning stands there."""

    by: str
    to: str | float
    free: Sequence[str]
    multiple_of: int
    within: float


def matched(config: dict[str, Any], overrides: Sequence[str], find: Find | None = None) -> dict[str, Any]:
    """The config with the size or limit that `match` solves for, and under `match.result` what came of it.

    Args:
        config: settled; returned as it is where nothing is to be matched.
        overrides: what was typed for it, on which a baseline given as overrides builds.
        find: gives the data; None: prepares it.

    Raises:
        ValueError: bad input, or no size comes near enough.
    """
    settings = {key: value for key, value in config["match"].items() if key != "result"}
    if not settings:
        return {**config, "match": {}}
    match = read(settings)
    check_content(config)
    check_free(config, match)

    import torch

    from triform.run.parts import data, model_factory

    with torch.device("meta"):
        model_factory(config, 1)()  # a wrong part is refused for itself, and before minutes of tokenising
    find = data if find is None else find
    if isinstance(match.to, str) and (Path(match.to).expanduser() / "config.yaml").is_file():
        match = replace(match, to=str(Path(match.to).expanduser().resolve()))  # the same from any folder
        settings["to"] = match.to
    other = _other(match, config, overrides)
    if match.by in ("tokens", "seconds"):
        changed, result = _limited(config, match, other, find)
    else:
        changed, result = _solved(config, match, other, find)
    return {**config, **changed, "match": {**settings, "result": result}}


def read(settings: Mapping[str, Any]) -> Match:
    """The section `match` of a config.

    Raises:
        BadInput: a key is missing, is none, or has a value that means nothing.
    """
    by = settings.get("by")
    if by not in MEASURED:
        raise BadInput(f"match.by={by}: choose match={', match='.join(groups()['match'])}")
    known = read_mapping(conf_dir() / "match" / f"{by}.yaml")
    for key in settings:
        if key not in known:
            raise BadInput(f"match.{key}: no such key{nearest(key, known)}; match={by} has {', '.join(known)}")
    for key in known:
        if key not in settings:
            raise BadInput(f"match.{key} is missing; choose match={by} or add match.{key}=VALUE")
    to = settings["to"]
    if isinstance(to, bool) or not isinstance(to, int | float | str) or to == "":
        raise BadInput(
            f"match.to={to} is no number, run or override; set match.to to one, such as 1e6 or 'model=decoder'"
        )
    if not isinstance(to, str) and not 0 < to < math.inf:
        raise BadInput(f"match.to={to} is not above 0; set match.to to how many {MEASURED[by][1]} are wanted")
    if by in ("tokens", "seconds"):
        return Match(by, to, (), 1, 0.0)  # which have no size
    free = settings["free"]
    free = tuple(free) if isinstance(free, list | tuple) else (free,)
    for size in free:
        if size not in SIZES or free.count(size) > 1:
            near = nearest(str(size), SIZES)
            raise BadInput(f"match.free={size}: name a size{near}, or several in a list: {', '.join(SIZES)}")
    if not free:
        raise BadInput(f"match.free=[] names no size; set match.free to one of {', '.join(SIZES)}")
    multiple_of, within = settings["multiple_of"], settings["within"]
    if isinstance(multiple_of, bool) or not isinstance(multiple_of, int) or multiple_of < 1:
        raise BadInput(
            f"match.multiple_of={multiple_of} is not a whole number above 0; set match.multiple_of to 1 or 8"
        )
    if isinstance(within, bool) or not isinstance(within, int | float) or not 0 <= within < 1:
        raise BadInput(f"match.within={within} is not a share from 0 to below 1; set match.within=0.01")
    return Match(by, to, free, multiple_of, float(within))


def check_free(config: Mapping[str, Any], match: Match) -> None:
    """Refuse a size that the model does not have, or that neither stack of an encoder-decoder reads."""
    from triform.models.encoder_decoder import unread

    model = config["model"]
    for size in match.free:
        if not isinstance(model.get(size), int):
            raise BadInput(f"match.free={size}: model.{size} is no size of this model; free another one")
        if isinstance(model.get("encoder"), Mapping) and unread(model, [size]):
            raise BadInput(
                f"match.free={size} reaches no stack: model.encoder.{size} and model.decoder.{size} are set; leave one "
                "out, or free another size"
            )


@dataclass(frozen=True)
class _Other:
    """What is to be equalled: a number, or the run of a config."""

    number: float | None
    config: dict[str, Any] | None = None


def _other(match: Match, config: Mapping[str, Any], overrides: Sequence[str]) -> _Other:
    if not isinstance(match.to, str):
        return _Other(float(match.to))
    path = Path(match.to)
    if (path / "config.yaml").is_file():
        return _of_run(match, RunFolder(path), config["trust"])
    if "=" not in match.to:
        hint = "it has no config.yaml" if path.is_dir() else "there is no such folder"
        raise BadInput(
            f"match.to={match.to} is no run: {hint}; give a number, a run's folder, or overrides such as model=decoder"
        )
    try:
        return _Other(None, _baseline(match.to, config, overrides))
    except ValueError as error:
        raise BadInput(f"{one_line(error)} (in the run of match.to={match.to})") from error


def _of_run(match: Match, folder: RunFolder, trust: Sequence[str]) -> _Other:
    summary = folder.read_summary()
    key, name = MEASURED[match.by]
    if match.by in ("tokens", "seconds") and summary.get("status") != "finished":
        raise BadInput(
            f"match.to={folder.path}: the run has not finished, its {name} are not known; wait for it, or give a number"
        )
    if match.by == "tokens":  # counted as trainer.max_tokens is: without the marks that its task adds
        key = "steps"
    value = summary.get(key)
    if not isinstance(value, int | float) or not value > 0:
        raise BadInput(f"match.to={folder.path}: its summary.json has no {key}; give another run, or a number")
    if match.by != "tokens":
        return _Other(float(value))
    config = {**folder.read_config(), "trust": list(trust)}
    trainer = config["trainer"] | dict.fromkeys(("max_epochs", "max_tokens", "max_hours")) | {"max_steps": int(value)}
    return _Other(None, {**config, "trainer": trainer})


def _baseline(words: str, config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The config of the other run: what was typed for this one, `words` in place of the same keys, and no match."""
    from triform.run.compose import compose  # needs Hydra, which ranks do without
    from triform.run.job import settled
    from triform.run.recipe import CONFIG_NAME

    anew = [*words.split(), "match=none"]
    keys = {word.partition("=")[0].lstrip("+~") for word in anew}
    found = parsed(overrides)
    kept = [word for word in found.overrides if _key(word) not in keys and not _key(word).startswith("match")]
    made = settled(compose([*kept, *anew], config_folders(overrides), found.config_name or CONFIG_NAME))
    check_keys(made)
    made["trust"] = list(config["trust"])
    check_content(made)
    return made


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _sketch(config: Mapping[str, Any], find: Find) -> "Sketch":
    from triform.run.sketch import sketch

    prepared = find(config)
    return sketch(config, None, None) if prepared is None else sketch(config, prepared.tokenizer, prepared.labels)


def _solved(config: dict[str, Any], match: Match, other: _Other, find: Find) -> tuple[dict[str, Any], dict[str, Any]]:
    """The section `model` with its free sizes, and the result."""
    name = MEASURED[match.by][1]
    wanted = other.number
    if wanted is None:
        assert other.config is not None
        try:
            of_other = _sketch(other.config, find)
            wanted = measure(match.by, of_other.model(other.config), of_other.seq_len)
        except ValueError as error:
            raise BadInput(f"{one_line(error)} (in the run of match.to={match.to})") from error
    known = _sketch(config, find)

    def count(n: int, size: str) -> float:
        return measure(match.by, known.model({**config, "model": {**model, size: n}}), known.seq_len)

    model: dict[str, Any] = dict(config["model"])
    reached = math.nan
    for size in match.free:
        step = step_of(model, size, match.multiple_of)
        try:
            most = DEEPEST if size == "n_layers" else WIDEST
            value, reached = nearest_size(partial(count, size=size), model[size], step, wanted, most)
        except ValueError as error:
            raise BadInput(f"match.free={size}: {one_line(error)}") from error
        model[size] = value
    difference = reached / wanted - 1
    sizes = {f"model.{size}": model[size] for size in match.free}
    if abs(difference) > match.within:
        shown = ", ".join(f"{key}={value}" for key, value in sizes.items())
        more = f"set match.free=[{','.join(match.free)},d_ff], so that d_ff makes up the rest"
        remedy = more if "d_ff" not in match.free else "change another size, or match.to"
        raise BadInput(
            f"match.free={','.join(match.free)}: no size comes within {100 * match.within:g} % of {wanted:,.0f} {name}"
            f"; the nearest, {shown}, has {reached:,.0f} ({difference:+.1%}); {remedy}, or set match.within"
        )
    return {"model": model}, {"wanted": wanted, "reached": reached, "difference": difference, "set": sizes}


def measure(by: str, model: "nn.Module", seq_len: int) -> float:
    """Parameters of a model, or FLOPs of training for each token in rows of `seq_len`."""
    from triform.models.cost import count_parameters, flops_per_token

    return count_parameters(model) if by == "params" else flops_per_token(model, seq_len)  # type: ignore[arg-type]


def step_of(model: Mapping[str, Any], size: str, multiple_of: int) -> int:
    """What a size is a multiple of.

    Args:
        model: as configured; a width is divided by the heads of every stack that have no width of their own.
    """
    if size == "n_layers":
        return 1
    if size == "d_ff":
        return multiple_of
    two = isinstance(model.get("encoder"), Mapping)
    stacks = [model.get(stack) or {} for stack in ("encoder", "decoder")] if two else [model]
    heads = [1]
    for stack in stacks:
        n_heads, head_dim = (
            model.get(key) if stack.get(key) is None else stack[key] for key in ("n_heads", "head_dim")
        )
        if head_dim is None and n_heads is not None:
            heads.append(n_heads)
    return math.lcm(multiple_of, *heads)


def nearest_size(count: Callable[[int], float], start: int, step: int, wanted: float, most: int) -> tuple[int, float]:
    """The size, a multiple of `step`, at which `count` is nearest to `wanted`, and the count there.

    Counts are polynomials of at most second degree in a width or a depth, so that a parabola through three of them
    leads there at once; where a part makes them otherwise, halving the interval does.

    Args:
        count: grows with the size; raises ValueError for one that the model refuses.
        start: a size to begin with.
        most: steps at most.

    Raises:
        ValueError: `count` does not take the sizes that are tried.
    """
    known: dict[int, float] = {}
    for last in (False, False, False, True):
        first = max(1, start // step) | 1
        try:
            known[first] = count(first * step)
            break
        except ValueError:
            if last:
                raise
            step *= 2  # such as heads of rotated pairs
    try_next = 2 * first
    for turn in range(60):
        known[try_next] = count(try_next * step)
        below = max((n for n, value in known.items() if value <= wanted), default=0)
        above = min((n for n, value in known.items() if value > wanted), default=most + 1)
        if above - below <= 1:
            break
        guess = (below + above) // 2 if turn % 4 == 3 and above <= most else math.floor(_guess(known, wanted))
        try_next = min(max(guess, below + 1), above - 1)
    best = min(known, key=lambda n: (abs(known[n] - wanted), n))
    return best * step, known[best]


def _guess(known: Mapping[int, float], wanted: float) -> float:
    """Where the parabola, or the line, through the known points nearest to `wanted` reaches it."""
    points = sorted(known.items(), key=lambda point: abs(point[1] - wanted))[:3]
    (x0, y0), (x1, y1) = points[:2]
    slope = (y1 - y0) / (x1 - x0)
    if len(points) == 3:
        x2, y2 = points[2]
        bend = ((y2 - y1) / (x2 - x1) - slope) / (x2 - x0)
        if bend > 0:
            at_zero = slope - bend * (x0 + x1)  # of the parabola bend * x^2 + at_zero * x + rest
            rest = y0 - bend * x0**2 - at_zero * x0
            root = at_zero**2 - 4 * bend * (rest - wanted)
            if root >= 0:
                return (-at_zero + math.sqrt(root)) / (2 * bend)
    return x0 + (wanted - y0) / slope if slope > 0 else 0.0


def _limited(config: dict[str, Any], match: Match, other: _Other, find: Find) -> tuple[dict[str, Any], dict[str, Any]]:
    """The section `trainer` with one limit in place of its own, and the result."""
    from triform.run.sketch import LIMITS, effort

    wanted = other.number
    if other.config is not None and match.by == "seconds":
        hours = other.config["trainer"]["max_hours"]
        if hours is None:
            raise BadInput(
                f"match.to={match.to}: how long that run takes is not known before it has run; train it and give its "
                "folder, give a number of seconds, or set trainer.max_hours in match.to"
            )
        wanted = hours * 3600
    elif other.config is not None:
        wanted = effort(other.config, find(other.config)).tokens
        if wanted is None:
            raise BadInput(
                f"match.to={match.to}: how many tokens that run reads is not known before it has run; give a number, "
                "or a run's folder"
            )
    assert wanted is not None
    limits: dict[str, Any] = dict.fromkeys(LIMITS)
    if match.by == "seconds":
        limits["max_hours"] = wanted / 3600
        reached = wanted
    else:
        limits["max_tokens"] = max(1, round(wanted))
    trainer = config["trainer"] | limits
    if match.by == "tokens":
        reached = effort({**config, "trainer": trainer}, find(config)).tokens or wanted
    key = "trainer.max_hours" if match.by == "seconds" else "trainer.max_tokens"
    result = {
        "wanted": wanted,
        "reached": reached,
        "difference": reached / wanted - 1,
        "set": {key: limits[key.partition(".")[2]]},
    }
    return {"trainer": trainer}, result


def said(config: Mapping[str, Any]) -> str | None:
    """One line of what was matched; None: nothing was."""
    result = config["match"].get("result")
    if result is None:
        return None
    changed = ", ".join(
        f"{key}={value:.6g}" if "hours" in key else f"{key}={value}" for key, value in result["set"].items()
    )
    name = MEASURED[config["match"]["by"]][1]
    return f"{changed}: {result['reached']:,.0f} {name}, {result['difference']:+.2%} from {result['wanted']:,.0f}"
