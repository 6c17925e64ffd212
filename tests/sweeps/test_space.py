import pytest

from triform.run.errors import BadInput
from triform.run.folder import read_mapping
from triform.run.help import conf_dir
from triform.sweeps.samplers import Interval, split
from triform.sweeps.space import Question, corners, examples, questions

TWO = {
    "optimizer": "choice(adamw,muon)",
    "optimizer.lr": [
        {"values": "tag(log, interval(1e-4, 1e-2))", "when": {"optimizer": "adamw"}},
        {"values": "tag(log, interval(1e-2, 1))", "when": {"optimizer": "muon"}},
    ],
    "optimizer.momentum": {"values": "choice(0.9,0.95)", "when": {"optimizer": ["muon", "adamw"]}},
}


def asked(space: dict[str, object], *words: str, fixed: dict[str, str] | None = None) -> list[Question]:
    return questions(space, split(words)[1], fixed or {})


def test_the_command_line_comes_first_and_replaces_a_file() -> None:
    found = asked(
        {"a": "interval(0,1)", "b": "choice(x,y)", "c": "range(2,5)"}, "d=1,2", "b=range(3)", fixed={"a": "7"}
    )
    assert [(one.key, one.values, one.ordered) for one in found] == [
        ("d", ("1", "2"), False),
        ("b", ("0", "1", "2"), True),
        ("c", ("2", "3", "4"), True),
    ]


def test_a_key_is_asked_where_another_has_a_value() -> None:
    found = asked(TWO)
    assert [one.name for one in found] == [
        "optimizer",
        "optimizer.lr if optimizer=adamw",
        "optimizer.lr if optimizer=muon",
        "optimizer.momentum if optimizer=muon|adamw",
    ]
    assert [one.asked({"optimizer": "muon"}) for one in found[1:]] == [False, True, True]
    assert isinstance(found[1].values, Interval)
    assert (found[1].values.log, found[1].values.end) == (True, 1e-2)


def test_a_condition_may_be_on_what_is_typed() -> None:
    found = asked(TWO, fixed={"optimizer": "muon"})
    assert examples(found, {"optimizer": "muon"}) == [["optimizer.lr=0.1", "optimizer.momentum=0.9"]]


def test_examples_ask_each_question_once() -> None:
    assert examples(asked(TWO), {}) == [
        ["optimizer=adamw", "optimizer.lr=0.001", "optimizer.momentum=0.9"],
        ["optimizer=muon", "optimizer.lr=0.1", "optimizer.momentum=0.9"],
    ]
    chain = {
        "a": "choice(no,yes)",
        "b": {"values": "choice(no,yes)", "when": {"a": "yes"}},
        "c": {"values": "int(interval(2,6))", "when": {"b": "yes"}},
    }
    assert examples(asked(chain), {}) == [["a=no"], ["a=yes", "b=no"], ["a=yes", "b=yes", "c=4"]]


@pytest.mark.parametrize("name", sorted(file.stem for file in (conf_dir() / "search").glob("*.yaml")))
def test_every_file_of_the_group_can_be_read(name: str) -> None:
    space = read_mapping(conf_dir() / "search" / f"{name}.yaml")["space"]
    assert (name == "none") == (space == {})
    if space:
        assert {key for words in examples(asked(space), {}) for key in (word.split("=")[0] for word in words)} == {
            *space
        }


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "the space is empty; give a key a range"),
        ({"a": []}, r"space: a: \[\] cannot be read"),
        ({"a": 3}, "space: a: 3 cannot be read; write a range"),
        ({"a": "3"}, "space: a: 3 is one value"),
        ({"a": {"values": "choice(1,2)", "if": "b"}}, "space: a: .* cannot be read"),
        ({"a": "interval(1,0)"}, r"a: interval\(1,0\) is empty"),
        ({"a": "tag(log,interval(0,1))"}, "let it begin above 0"),
        ({"a": {"values": "choice(1,2)", "when": "b"}}, "when: b cannot be read"),
        (
            {"bb": "choice(1,2)", "a": {"values": "choice(1,2)", "when": {"b": 1}}},
            r"b is not asked before it.*mean 'bb'",
        ),
        ({"b": "choice(one,two)", "a": {"values": "choice(1,2)", "when": {"b": "tow"}}}, r"b is never tow.*'two'"),
        ({"b": "interval(0,1)", "a": {"values": "choice(1,2)", "when": {"b": 1}}}, "b is a range"),
    ],
)
def test_a_space_that_cannot_be_read_is_refused(space: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        asked(space)


def test_the_corners_stay_within_each_branch() -> None:
    assert corners(asked(TWO), {}) == [
        ["optimizer=adamw", "optimizer.lr=0.001", "optimizer.momentum=0.9"],
        ["optimizer=adamw", "optimizer.lr=0.0001", "optimizer.momentum=0.9"],
        ["optimizer=adamw", "optimizer.lr=0.01", "optimizer.momentum=0.9"],
        ["optimizer=muon", "optimizer.lr=0.1", "optimizer.momentum=0.9"],
        ["optimizer=adamw", "optimizer.lr=0.001", "optimizer.momentum=0.95"],
        ["optimizer=muon", "optimizer.lr=0.01", "optimizer.momentum=0.9"],
        ["optimizer=muon", "optimizer.lr=1", "optimizer.momentum=0.9"],
        ["optimizer=muon", "optimizer.lr=0.1", "optimizer.momentum=0.95"],
    ]
    assert len(corners(asked(TWO), {"optimizer": "muon"})) == 4


def test_all_corners_of_four_ranges_are_checked_and_two_of_five() -> None:
    four = dict.fromkeys("abcd", "int(interval(2,6))")
    found = corners(asked(four), {})
    assert len(found) == 1 + 2**4
    assert ["a=2", "b=6", "c=2", "d=6"] in found
    assert corners(asked(four | {"e": "range(3,6)"}), {}) == [
        ["a=4", "b=4", "c=4", "d=4", "e=3"],
        ["a=2", "b=2", "c=2", "d=2", "e=3"],
        ["a=6", "b=6", "c=6", "d=6", "e=5"],
        ["a=4", "b=4", "c=4", "d=4", "e=4"],
        ["a=4", "b=4", "c=4", "d=4", "e=5"],
    ]


def test_of_two_ranges_whose_conditions_hold_the_first_is_asked() -> None:
    both = {
        "a": "choice(1,2)",
        "b": [
            {"values": "interval(0,1)", "when": {"a": [1, 2]}},
            {"values": "interval(4,6)", "when": {"a": 2}},
        ],
    }
    two = ((2, 0.5), (2, 0), (2, 1))
    assert corners(asked(both), {}) == [[f"a={a}", f"b={b}"] for a, b in ((1, 0.5), (1, 0), (1, 1), *two)]
    assert all(sum(word.startswith("b=") for word in words) == 1 for words in examples(asked(both), {}))
