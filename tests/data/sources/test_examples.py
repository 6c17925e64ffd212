from typing import Any

import pytest

from triform.data.sources.base import Place
from triform.data.sources.examples import Chat, MultiLabelled, Reader, Scored, Tagged, rows

PLACE = Place("x.jsonl", "line", 3)


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("b, a ,b", ["b", "a"]),
        ("", []),
        (" , ", []),
        (["a", "b c"], ["a", "b c"]),
        ([], []),
        (7, ["7"]),
        ([1, 2], ["1", "2"]),
    ],
)
def test_labels_are_a_list_or_separated(cell: Any, labels: list[str]) -> None:
    assert MultiLabelled(",").row(["text", cell], PLACE) == {"text": "text", "labels": labels}


def test_a_separator_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"label_separator='' separates nothing; set data\.label_separator"):
        MultiLabelled("")


@pytest.mark.parametrize(("cell", "score"), [("1.5", 1.5), (" -2 ", -2.0), (3, 3.0), ("1e-3", 0.001)])
def test_scores(cell: Any, score: float) -> None:
    assert Scored().row(["text", cell], PLACE) == {"text": "text", "score": score}


@pytest.mark.parametrize("cell", ["", "two", "nan", "1e999", "1,5", True, [1]])
def test_what_is_no_score_is_refused(cell: Any) -> None:
    with pytest.raises(ValueError, match=r"x\.jsonl, line 3 has the score .*, which is no finite number"):
        Scored().row(["text", cell], PLACE)


def test_words_and_tags() -> None:
    assert Tagged().row([["New York", 5], ["B", "O"]], PLACE) == {"tokens": ["New York", "5"], "tags": ["B", "O"]}
    assert Tagged().row([[], []], PLACE) is None


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([["a", "b"], ["O"]], r"line 3 has 2 words and 1 tags; give each word one"),
        ([["a", " "], ["O", "O"]], r"line 3 has a blank word, the 2\. of 2"),
        ([["a"], [""]], r"line 3 has a blank tag, the 1\. of 1"),
        (["a b", ["O", "O"]], r"line 3: data\.tokens_column holds a str, no list"),
    ],
)
def test_words_without_tags_are_refused(cells: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tagged().row(cells, PLACE)


class TestChat:
    TEMPLATE = "<{role}>{content}</{role}>"

    def test_turns_of_the_assistant_are_learned_with_their_end(self) -> None:
        messages = [{"role": "user", "content": "{role}?"}, {"role": "assistant", "content": "yes", "name": "x"}]
        assert Chat(self.TEMPLATE).row([messages], PLACE) == {
            "turns": [
                ("<user>", False),
                ("{role}?", False),
                ("</user>", False),
                ("<assistant>", False),
                ("yes", True),
                ("</assistant>", True),
            ]
        }

    def test_the_other_form(self) -> None:
        messages = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "tool", "value": "c"}]
        same = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "tool", "content": "c"},
        ]
        assert Chat(self.TEMPLATE).row([messages], PLACE) == Chat(self.TEMPLATE).row([same], PLACE)

    @pytest.mark.parametrize("template", ["{role}", "{content}", "{content}{role}", "{role}{content}{content}", ""])
    def test_a_template_without_its_pieces_is_refused(self, template: str) -> None:
        with pytest.raises(ValueError, match=r"needs \{role\} and after it, once, \{content\}; set data\.template"):
            Chat(template)

    @pytest.mark.parametrize(
        ("cell", "message"),
        [
            ("Hello", r"line 3: data\.messages_column holds a str, no list of messages"),
            (["Hello"], r"line 3, message 1 is not \{'role': a text, 'content': a text\} but \"Hello\"; mend it"),
            ([{"role": "assistant"}], r"line 3, message 1 is not"),
            ([{"role": "assistant", "content": None}], r"line 3, message 1 is not"),
            ([{"from": "gpt", "content": "x"}], r"line 3, message 1 is not \{'from': a text, 'value': a text\}"),
            ([{"role": "user", "content": "x"}], r"line 3 has no message of the role assistant, .* it has user"),
        ],
    )
    def test_what_is_no_conversation_is_refused(self, cell: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Chat(self.TEMPLATE).row([cell], PLACE)


@pytest.mark.parametrize(
    ("reader", "cells", "n"),
    [(MultiLabelled(","), [["a", "x"], [" ", "x"]], 1), (Scored(), [["a", 1], ["", 2], ["b", 3]], 2)],
)
def test_rows_without_text_are_left_out_and_counted(
    reader: Reader, cells: list[list[Any]], n: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = list(rows(reader, [(Place("x", "line", i), row) for i, row in enumerate(cells, 5)]))
    assert len(found) == n
    assert found[0]["place"] == Place("x", "line", 5)
    assert f"1 of {len(cells)} rows have no text and are left out; the first is x, line 6" in caplog.text
