import gzip
import json
from pathlib import Path

import pytest

from tests.data.sources.reading import rows_of
from triform.data.sources.tables import Column
from triform.data.sources.tagged import TaggedFiles


def read(
    tmp_path: Path, text: str, name: str = "x.conll", tokens: Column = None, tags: Column = None
) -> list[tuple[list[str], list[str]]]:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    rows = rows_of(TaggedFiles(str(path), None, None, 0.1, "utf-8", tokens, tags))["train"]
    return [(row["tokens"], row["tags"]) for row in rows]


CONLL_2003 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

# NN I-NP O
. . O O
"""

CONLLU = """# newdoc id = 1
# text = don't #1
1-2\tdon't\t_\t_
1\tdo\tdo\tAUX
2\tn't\tnot\tPART
2.1\tnull\t_\t_
3\t#\t#\tSYM
4\tNew York\tNew York\tPROPN


# text = Go
1\tGo\tgo\tVERB
"""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["x.conll", "x.txt.gz"])
def test_conll(tmp_path: Path, end: str, name: str) -> None:
    text = CONLL_2003.replace("\n", end)
    assert read(tmp_path, text, name) == [(["EU", "rejects"], ["I-ORG", "O"]), (["#", "."], ["O", "O"])]
    assert read(tmp_path, text, name, tags=1)[0] == (["EU", "rejects"], ["NNP", "VBZ"])
    assert read(tmp_path, text, name, tokens=-3, tags=0)[1] == (["NN", "."], ["#", "."])


def test_a_word_may_have_a_no_break_space_in_it(tmp_path: Path) -> None:
    assert read(tmp_path, "1\xa0000  NUM\nkm NOUN\n") == [(["1\xa0000", "km"], ["NUM", "NOUN"])]


def test_blanks_around_a_tag_are_no_part_of_it(tmp_path: Path) -> None:
    assert read(tmp_path, "a\tO \nb\tO\n") == [(["a", "b"], ["O", "O"])]


def test_conllu(tmp_path: Path) -> None:
    assert read(tmp_path, CONLLU, "x.conllu", tokens=1, tags=3) == [
        (["do", "n't", "#", "New York"], ["AUX", "PART", "SYM", "PROPN"]),
        (["Go"], ["VERB"]),
    ]


def test_lists_in_tables(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"words": ["New York", "is"], "ner": ["B", "O"]}) for _ in range(2))
    assert read(tmp_path, lines, "x.jsonl", tokens="words", tags="ner") == [(["New York", "is"], ["B", "O"])] * 2


@pytest.mark.parametrize(
    ("text", "tokens", "tags", "message"),
    [
        ("a O\nb\n", None, None, r"x\.conll, line 2 has 1 columns, line 1 has 2; mend the line, and leave a blank"),
        ("a O\n\n\nb c O\n", None, None, r"x\.conll, line 4 has 3 columns, line 1 has 2"),
        ("a\nb\n", None, None, r"x\.conll, line 1 has a word without a tag"),
        ("a O\n", 2, None, r"data\.tokens_column=2 is no column of .*x\.conll, which has 2; count from 0 to 1"),
        ("a O\n", None, "ner", r"data\.tags_column=ner: .*x\.conll has columns without names; set .* to a number"),
        ("a\t\nb\tO\n", None, None, r"x\.conll, line 1 has a blank tag, the 1\. of 2"),
        ("\n\n", None, None, r"x\.conll holds no sentences"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, tokens: Column, tags: Column, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, text, tokens=tokens, tags=tags)
    assert "\n" not in str(caught.value)
