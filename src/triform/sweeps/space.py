"""What a search may choose: ranges and values of keys, some of which are asked only where others have a value."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.types import Override, RangeSweep

from triform.run.errors import BadInput, nearest
from triform.sweeps.samplers import Interval, split, values_of

CORNERS = 4
"""Ranges of which all combinations of ends are checked: 16."""


@dataclass(frozen=True)
class Question:
    """A key, and what it may be.

    Args:
        values: a range of numbers, or words as they follow `key=`.
        ordered: whether near words mean near things, as those of range(2,8) do.
        when: key -> words; the question is asked where each of these keys has one of them.
    """

    key: str
    values: Interval | tuple[str, ...]
    ordered: bool = False
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The key, with its condition: where that differs, so may the values."""
        conditions = [f"{key}={'|'.join(words)}" for key, words in self.when.items()]
        return self.key + (f" if {' and '.join(conditions)}" if conditions else "")

    @property
    def middle(self) -> str:
        """A word for a value in the midst of a range, or the first one."""
        return self.values.middle if isinstance(self.values, Interval) else self.values[0]

    @property
    def ends(self) -> tuple[str, ...]:
        """Words for both ends of a range; of words in no order, none."""
        if isinstance(self.values, Interval):
            return self.values.word(self.values.start), self.values.word(self.values.end)
        return (self.values[0], self.values[-1]) if self.ordered else ()

    def asked(self, answers: Mapping[str, str]) -> bool:
        """Whether it is, after these answers: of several ranges of one key, the first whose condition holds."""
        return self.key not in answers and all(answers.get(key) in words for key, words in self.when.items())


def questions(space: Mapping[str, Any], swept: Sequence[Override], fixed: Mapping[str, str]) -> list[Question]:
    """What a search asks, in this order.

    Args:
        space: as in `conf/search/`.
        swept: ranges on the command line, which replace those of the same key.
        fixed: key -> word, of those that have one value on the command line: these are not asked.

    Raises:
        BadInput: it is empty, or cannot be read.
    """
    found = [_question(override, {}) for override in swept]
    typed = {question.key for question in found} | set(fixed)
    for key, entry in space.items():
        if key in typed:
            continue
        for one in entry if isinstance(entry, list) and entry else [entry]:
            found.append(_entry(str(key), one, found, fixed))
    if not found:
        raise BadInput(
            "hydra/sweeper=optuna: the space is empty; give a key a range, as "
            "optimizer.lr=tag(log,interval(1e-4,1e-2)), or choose search=small"
        )
    return found


def _question(override: Override, when: Mapping[str, tuple[str, ...]]) -> Question:
    values = values_of(override)
    ordered = isinstance(override.value(), RangeSweep)
    unique = values if isinstance(values, Interval) else tuple(dict.fromkeys(values))
    return Question(override.get_key_element(), unique, ordered, when)


def _entry(key: str, entry: Any, before: Sequence[Question], fixed: Mapping[str, str]) -> Question:
    known = {"values": entry} if isinstance(entry, str) else entry
    if not isinstance(known, Mapping) or not isinstance(known.get("values"), str) or set(known) - {"values", "when"}:
        raise BadInput(
            f"space: {key}: {entry} cannot be read; write a range such as interval(0,1) or choice(a,b), or values: and "
            "when: with the values of other keys"
        )
    swept = split([f"{key}={known['values']}"])[1]
    if not swept:
        raise BadInput(f"space: {key}: {known['values']} is one value; write a range such as interval(0,1)")
    conditions = known.get("when") or {}
    if not isinstance(conditions, Mapping):
        raise BadInput(f"space: {key}: when: {conditions} cannot be read; write when: {{KEY: VALUE}}")
    when = {}
    for other, wanted in conditions.items():
        words = tuple(_word(one) for one in (wanted if isinstance(wanted, list) else [wanted]))
        possible: list[str] = [fixed[other]] if other in fixed else []
        for question in before:
            if question.key == other:
                if isinstance(question.values, Interval):
                    raise BadInput(f"space: {key}: when: {other} is a range; ask when a key has one of several values")
                possible += question.values
        if not possible:
            names = [question.key for question in before]
            raise BadInput(
                f"space: {key}: when: {other} is not asked before it{nearest(str(other), names)}; put {other} above it"
            )
        never = [word for word in words if word not in possible]
        if never and other not in fixed:
            raise BadInput(
                f"space: {key}: when: {other} is never {never[0]}{nearest(never[0], possible)}; it may be "
                f"{', '.join(possible)}"
            )
        when[str(other)] = words
    return _question(swept[0], when)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def examples(asked: Sequence[Question], fixed: Mapping[str, str]) -> list[list[str]]:
    """Overrides of as few jobs as it takes for each question to be asked once."""
    found: list[list[str]] = []
    seen: set[str] = set()
    for question in asked:
        if question.name in seen:
            continue
        wanted = _wanted(question, asked)
        answers = dict(fixed)
        words = []
        for other in asked:
            if other.asked(answers):
                answers[other.key] = wanted.get(other.key, other.middle)
                words.append(f"{other.key}={answers[other.key]}")
                seen.add(other.name)
        if words not in found:
            found.append(words)
    return found


def corners(asked: Sequence[Question], fixed: Mapping[str, str]) -> list[list[str]]:
    """Overrides of the jobs that a space is checked by: of each of `examples` the middle; all combinations of the ends
    of its ranges (of more than four ranges all lowest and all highest); and each word of a choice once, with the middle
    of what it leads to."""
    found: list[list[str]] = []
    for middle in examples(asked, fixed):
        given = dict(word.split("=", 1) for word in middle)
        here, answers = [], dict(fixed)
        for one in asked:
            if one.asked(answers):
                answers[one.key] = given[one.key]
                here.append(one)
        ranges = {one.name: one.ends for one in here if one.ends}
        if len(ranges) <= CORNERS:
            ends = list(itertools.product(*ranges.values()))
        else:
            ends = list(zip(*ranges.values(), strict=True))
        changes = [dict(zip(ranges, chosen, strict=True)) for chosen in ends]
        for one in here:
            if not isinstance(one.values, Interval):
                changes += [{one.name: word} for word in one.values]
        chosen = {one.name: given[one.key] for one in here}
        for change in ({}, *changes):
            words = _words(asked, fixed, {**chosen, **change})
            if words not in found:
                found.append(words)
    return found


def _words(asked: Sequence[Question], fixed: Mapping[str, str], chosen: Mapping[str, str]) -> list[str]:
    """Overrides of a job with these answers, by the questions' names, and the middle where another one is asked."""
    answers, words = dict(fixed), []
    for one in asked:
        if one.asked(answers):
            answers[one.key] = chosen.get(one.name, one.middle)
            words.append(f"{one.key}={answers[one.key]}")
    return words


def _wanted(question: Question, asked: Sequence[Question]) -> dict[str, str]:
    """Answers after which a question is asked."""
    found: dict[str, str] = {}
    for key, words in question.when.items():
        found[key] = words[0]
        for other in asked:
            if other.key == key and not isinstance(other.values, Interval) and words[0] in other.values:
                found |= _wanted(other, asked)
                break
    return found
