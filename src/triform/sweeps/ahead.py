"""The jobs of a command line before any of them runs: of a search the corners and the middle of its space."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import OmegaConf

from triform.run.compose import composed
from triform.run.errors import BadInput
from triform.run.explain import TYPED, Explanation, Source, explain_key, files, shown
from triform.run.jobs import Words, jobs, staged
from triform.run.recipe import quoted, with_recipe
from triform.sweeps.samplers import Sampler, is_setting, kind_of, read_list, sampler, split
from triform.sweeps.space import Question, corners, examples

if TYPE_CHECKING:
    from triform.sweeps.optuna import Search

PACKAGE = "hydra.sweeper"
"""Where a file of `conf/search` stands in the config."""


def foreseen(overrides: Sequence[str], folders: Sequence[Path]) -> tuple[list[Words], int | None]:
    """The jobs of a sweep, with `compare.tune` as `staged` has them, or of a search those that its space is checked by,
    and how many it will have.

    Args:
        folders: config folders of the user's own.

    Raises:
        BadInput: an override, the list or the space cannot be read, or they do not go together.
    """
    found = _search(overrides, folders)
    if found is None:
        return _listed(overrides, folders) or _drawn(overrides, folders) or staged(overrides), None
    fixed, search = found
    return _with(fixed, corners(search.questions, search.fixed)), search.n_trials


def branches(overrides: Sequence[str], folders: Sequence[Path]) -> list[Words]:
    """Every combination of a grid or a list, of what is drawn at random the two ends of each range, or of a search as
    few jobs as it takes for each key to be asked once.

    Raises:
        BadInput: an override, the list or the space cannot be read, or they do not go together.
    """
    found = _search(overrides, folders)
    if found is None:
        return _listed(overrides, folders) or jobs(overrides, True)
    fixed, search = found
    return _with(fixed, search.examples())


def explain_searched(key: str, overrides: Sequence[str], folders: Sequence[Path]) -> list[tuple[Explanation, str]]:
    """Where each range that a search has for a key is from, with the condition under which it is asked; empty: there is
    no search, or the key is not part of it.

    Raises:
        BadInput: an override or the space cannot be read, or there is no such key.
    """
    found = _search(overrides, folders)
    if found is None:
        return []
    fixed, search = found
    explanations = []
    mine = [one for one in search.questions if _plain(one.key) == _plain(key)]
    for place, question in enumerate(mine):
        condition = question.name.partition(" if ")[2]
        alone = [one for one in search.questions if one.key != question.key or one is question]
        asking = (words for words in examples(alone, search.fixed) if _asks(words, question, search.fixed))
        words = next(asking, None)
        if words is None:  # what is typed rules it out
            continue
        under = explain_key(key, [*fixed, *(word for word in words if word.partition("=")[0] != question.key)], folders)
        source = _source(question, place, overrides, folders)
        comment = " ".join(filter(None, (f"where {condition};" if condition else "", source.comment)))
        source = replace(source, comment=comment.rstrip(";"))
        explanations.append((Explanation(under.key, source.text, [*under.sources, source], under.choices), condition))
    return explanations


def _search(overrides: Sequence[str], folders: Sequence[Path]) -> "tuple[list[str], Search] | None":
    """What all jobs of a search share, and what chooses them; None: the command line is no search."""
    settings = _settings(overrides, folders)
    if kind_of(settings) != "optuna" and not settings.get("space"):
        return None
    fixed, found = _chosen(overrides, settings)  # which refuses what the sweep would

    from triform.sweeps.optuna import Search

    assert isinstance(found, Search)
    return fixed, found


def _listed(overrides: Sequence[str], folders: Sequence[Path]) -> list[Words]:
    """The jobs of a list; none: there is no list."""
    settings = _settings(overrides, folders)
    if kind_of(settings) != "list":
        return []
    if _tuned(overrides) is None:
        return _asked(*_chosen(overrides, settings))
    found = []
    for line in dict.fromkeys(tuple(line) for line in read_list(settings)):
        found += [Words(job.overrides, " ".join((*line, job.varied))) for job in staged([*overrides, *line])]
    return found


def _drawn(overrides: Sequence[str], folders: Sequence[Path]) -> list[Words]:
    """The jobs that are drawn at random; none: none is."""
    settings = _settings(overrides, folders)
    return _asked(*_chosen(overrides, settings)) if kind_of(settings) == "random" else []


def _asked(fixed: Sequence[str], chosen: Sampler) -> list[Words]:
    """The jobs of a sampler to which it makes no difference how they end."""
    chosen.begin([])
    found: list[list[str]] = []
    while (words := chosen.ask(len(found))) is not None:
        found.append(words)
    return _with(fixed, found)


def _with(fixed: Sequence[str], varied: Iterable[Sequence[str]]) -> list[Words]:
    return [Words([*fixed, *words], " ".join(words)) for words in varied]


def _settings(overrides: Sequence[str], folders: Sequence[Path]) -> dict[str, Any]:
    """The keys of `hydra.sweeper`."""
    config = composed(with_recipe(["experiment=none", *_about([quoted(word) for word in overrides])], folders), folders)
    settings = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
    assert isinstance(settings, dict)
    return {str(key): value for key, value in settings.items() if key != "_target_"}


def _chosen(overrides: Sequence[str], settings: Mapping[str, Any]) -> tuple[list[str], Sampler]:
    """What all jobs of a sweep share, and what chooses them."""
    kind, tuned = kind_of(settings), _tuned(overrides)
    if tuned is not None:
        raise BadInput(f"compare.tune={tuned} is a search already; leave hydra/sweeper={kind} out, or compare.tune")
    fixed, swept = split([word for word in map(quoted, overrides) if not is_setting(word)])
    return fixed, sampler(settings, swept, fixed)


def _tuned(overrides: Sequence[str]) -> str | None:
    """The key that `compare.tune` names."""
    typed = {word.partition("=")[0]: word.partition("=")[2] for word in overrides}
    found = typed.get("compare.tune", "null")
    return None if found == "null" else found


def _about(words: Sequence[str]) -> list[str]:
    """What of a command line says how jobs are chosen."""
    return [word for word in words if word.lstrip("+~").startswith(("search=", "hydra/sweeper", "hydra.sweeper"))]


def _plain(key: str) -> str:
    return key.lstrip("+").replace("/", ".")


def _asks(words: Sequence[str], question: Question, fixed: Mapping[str, str]) -> bool:
    answers = {**fixed, **dict(word.split("=", 1) for word in words)}
    return question.key in answers and all(answers.get(key, "") in wanted for key, wanted in question.when.items())


def _source(question: Question, place: int, overrides: Sequence[str], folders: Sequence[Path]) -> Source:
    """Who states a range: the command line, or the place-th one of its key in a file."""
    typed = [word for word in overrides if word.partition("=")[0] == question.key]
    if typed:
        return Source(TYPED, typed[-1].partition("=")[2], "searched")
    stated = [
        Source(f"{shown(file)}:{line}", text, "searched")
        for file, package in files(with_recipe(["experiment=none", *_about(overrides)], folders), folders)
        if package == PACKAGE
        for at, (line, text) in enumerate(_ranges(file, question.key))
        if at == place
    ]
    return stated[-1]


def _ranges(file: Path, key: str) -> Iterator[tuple[int, str]]:
    """Line and text of each range that a file of `conf/search` has for a key."""
    node = _under(yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader), "space")
    entry = _under(node, key)
    for one in entry.value if isinstance(entry, yaml.SequenceNode) else [entry]:
        value = _under(one, "values") if isinstance(one, yaml.MappingNode) else one
        if isinstance(value, yaml.ScalarNode):
            yield value.start_mark.line + 1, value.value


def _under(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)
