"""What a config gives a class, held against what the class takes."""

from typing import Any

import pytest

from triform.run.arguments import check_arguments


class Part:
    """Every kind of plain annotation."""

    def __init__(
        self, n: int, share: float, on: bool, name: str | None, many: list[int], x: type | list[int], rest: int = 0
    ) -> None: ...


@pytest.mark.parametrize(
    "changed",
    [{}, {"share": 1}, {"name": None}, {"many": []}, {"many": {"_target_": "a.Sequence"}}, {"x": "any"}, {"rest": 3}],
)
def test_arguments_that_fit(changed: dict[str, Any]) -> None:
    check_arguments(node(**changed), "part", ["tests"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n": 1.5}, r"part\.n=1\.5 is not a whole number; set part\.n"),
        ({"n": True}, r"part\.n=true is not a whole number"),
        ({"n": None}, r"part\.n=null is not a whole number"),
        ({"share": "half"}, r"part\.share=half is not a number"),
        ({"on": 1}, r"part\.on=1 is not true or false"),
        ({"name": 3}, r"part\.name=3 is not a text or null"),
        ({"many": 3}, r"part\.many=3 is not a list, each a whole number; set part\.many"),
        ({"many": "3"}, r"part\.many='3' is not a list"),
        ({"many": [1, "two"]}, r"part\.many=\[1, 'two'\] is not a list, each a whole number"),
        ({"shar": 1.0}, r"part\.shar: Part takes no such key \(did you mean 'share'\?\); it has n, share"),
    ],
)
def test_arguments_that_do_not_fit(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_arguments(node(**changed), "part", ["tests"])


def test_an_argument_that_is_missing() -> None:
    given = node()
    del given["share"]
    with pytest.raises(ValueError, match=r"part\.share is missing: Part needs it"):
        check_arguments(given, "part", ["tests"])
    check_arguments({**given, "_partial_": True}, "part", ["tests"])  # its owner may give it


def node(**changed: Any) -> dict[str, Any]:
    """A node that builds `Part`."""
    plain = {"n": 1, "share": 0.5, "on": False, "name": "x", "many": [1], "x": {}}
    return {"_target_": f"{__name__}.Part", **plain, **changed}
