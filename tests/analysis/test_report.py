"""What is printed at the end of a run, as plain text."""

import io

import pytest
from rich.console import Console

from triform.analysis.report import choose, number, print_report, shortened
from triform.tasks.objective import Sample

RIGHT = Sample(source="3 May 1987", output="1987-05-03", target="1987-05-03", correct=True)
WRONG = Sample(source="[red]4 May", output="1987-05-05", target="1987-05-04", correct=False)


def text(*args: object) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=100), *args)  # type: ignore[arg-type]
    return out.getvalue()


def test_metrics_stand_beside_baselines_that_have_them() -> None:
    printed = text({"accuracy": 0.81234, "loss": 0.5}, {"majority": {"accuracy": 0.197}}, [])
    assert [line.split() for line in printed.splitlines()] == [
        ["metric", "this", "run", "majority"],
        ["accuracy", "0.8123", "0.197"],
        ["loss", "0.5"],
    ]


def test_samples_show_what_was_expected_only_where_it_differs() -> None:
    lines = [line.split() for line in text({}, {}, [RIGHT, WRONG]).splitlines() if "May" in line]
    assert lines == [
        ["right", "3", "May", "1987", "1987-05-03"],
        ["wrong", "[red]4", "May", "1987-05-05", "1987-05-04"],
    ], "square brackets of the data are no markup"


def test_samples_that_nobody_judges_have_no_marks() -> None:
    printed = text({}, {}, [Sample(source="def f", output="(x):")])
    assert "expected" not in printed
    assert "def f" in printed


def test_choose_takes_the_first_of_each_kind() -> None:
    assert choose([WRONG, RIGHT, WRONG, RIGHT, WRONG], right=1, wrong=2) == [RIGHT, WRONG, WRONG]
    assert choose([RIGHT], right=4, wrong=4) == [RIGHT]


@pytest.mark.parametrize(
    ("value", "shown"), [(1234567, "1,234,567"), (0.98765, "0.9877"), (3.0, "3"), (float("nan"), "nan")]
)
def test_number(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_long_text_that_is_judged_is_printed_on_one_line() -> None:
    assert shortened("a\n b\tc") == "a b c"
    line = shortened("word " * 100)
    assert line.endswith(" ...")
    assert len(line) <= 164
