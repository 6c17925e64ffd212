"""What `Split` gives for each kind, from files to arrays."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triform.data.prepare import Prepared, Split, prepare
from triform.data.sources.base import Source
from triform.data.sources.chat import ChatFiles
from triform.data.sources.multilabelled import MultiLabelledFiles
from triform.data.sources.scored import ScoredFiles
from triform.data.sources.tagged import TaggedFiles
from triform.data.tokenizers import BPE, Byte, Char, Recipe

TEMPLATE = "<|{role}|>\n{content}<|end|>\n"


def write(tmp_path: Path, split: str, rows: list[dict[str, Any]]) -> str:
    path = tmp_path / f"{split}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def make(source: Source, tmp_path: Path, recipe: Recipe | None = None) -> Prepared:
    return prepare(source, recipe or Char(), tmp_path / "cache", progress=False)


def multilabelled(tmp_path: Path, train: list[list[str]], validation: list[list[str]] | None) -> MultiLabelledFiles:
    names = [
        write(tmp_path, split, [{"text": f"text {i}", "labels": labels} for i, labels in enumerate(rows)])
        for split, rows in (("train", train), ("validation", validation or []))
    ]
    return MultiLabelledFiles(names[0], names[1] if validation else None, None, 0.5, "utf-8", None, None, ",")


def test_multilabelled(tmp_path: Path) -> None:
    prepared = make(multilabelled(tmp_path, [["b", "10"], [], ["a", "2"]], [["a"], []]), tmp_path)
    assert prepared.labels == ["2", "10", "a", "b"]
    train, validation = prepared.splits["train"], prepared.splits["validation"]
    assert [train[i]["labels"].tolist() for i in range(3)] == [[3, 1], [], [2, 0]]
    assert [validation[i]["labels"].tolist() for i in range(2)] == [[2], []]
    assert train[1]["labels"].dtype == np.int64
    assert prepared.tokenizer.decode(train[2]["ids"]) == "text 2"
    with pytest.raises(ValueError, match=r"label 'c' of the split validation \(.*validation\.jsonl, line 2\) does not"):
        make(multilabelled(tmp_path, [["a"], ["b"]], [["a"], ["c"]]), tmp_path)


def test_held_out_rows_keep_their_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [[str(i % 7), "x"] for i in range(60)] + [["only"]]
    prepared = make(multilabelled(tmp_path, rows, None), tmp_path)
    assert prepared.labels is not None
    assert [len(split) for split in prepared.splits.values()] in ([31, 30], [32, 29])
    for split in prepared.splits.values():
        for i in range(len(split)):
            n = int(split.texts(i)["text"].split()[1])
            assert [prepared.labels[k] for k in split[i]["labels"]] == rows[n]
    learnt = {int(k) for i in range(len(prepared.splits["train"])) for k in prepared.splits["train"][i]["labels"]}
    assert learnt == set(range(len(prepared.labels)))


def test_scored(tmp_path: Path) -> None:
    name = write(tmp_path, "train", [{"text": f"text {i}", "score": i / 4} for i in range(40)])
    prepared = make(ScoredFiles(name, None, None, 0.25, "utf-8", None, None), tmp_path)
    assert prepared.labels is None
    assert {name: len(split) for name, split in prepared.splits.items()} == {"train": 30, "validation": 10}
    for split in prepared.splits.values():
        for i in range(len(split)):
            assert split[i]["score"] == int(split.texts(i)["text"].split()[1]) / 4


def tagged(tmp_path: Path, train: list[tuple[str, str]], validation: list[tuple[str, str]]) -> TaggedFiles:
    names = [
        write(tmp_path, split, [{"tokens": words.split("|"), "tags": tags.split()} for words, tags in rows])
        for split, rows in (("train", train), ("validation", validation))
    ]
    return TaggedFiles(names[0], names[1], None, 0.5, "utf-8", None, None)


SENTENCES = [("New York|is|é", "B O O"), ("so|is|Rome", "O O B")]


@pytest.mark.parametrize("recipe", [Char(), Byte(), BPE(280, lowercase=False)])
def test_tags_stand_at_the_first_token_of_each_word(tmp_path: Path, recipe: Recipe) -> None:
    prepared = make(tagged(tmp_path, SENTENCES * 40, [("so|York", "O B"), ("is", "O")]), tmp_path, recipe)
    assert prepared.labels == ["B", "O"]
    tokenizer = prepared.tokenizer
    for split, n, words, tags in (
        ("train", 0, ["New York", "is", "é"], [0, 1, 1]),
        ("train", 1, ["so", "is", "Rome"], [1, 1, 0]),
        ("validation", 0, ["so", "York"], [1, 0]),
    ):
        example = prepared.splits[split][n]
        assert len(example["ids"]) == len(example["tags"])
        assert tokenizer.decode(example["ids"]) == " ".join(words) == prepared.splits[split].texts(n)["text"]
        starts = np.flatnonzero(example["tags"] != -100)
        assert example["tags"][starts].tolist() == tags
        pieces = [tokenizer.decode(part).strip() for part in np.split(example["ids"], starts[1:])]
        assert pieces == words
    assert len(prepared.splits["validation"]) == 2


def test_a_tag_of_characters_is_not_at_the_blank(tmp_path: Path) -> None:
    prepared = make(tagged(tmp_path, SENTENCES, [("so|York", "O B")]), tmp_path)
    example = prepared.splits["validation"][0]
    assert prepared.tokenizer.decode(example["ids"]) == "so York"
    assert example["tags"].tolist() == [1, -100, -100, 0, -100, -100, -100]


def test_an_unseen_tag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"label 'I' of the split validation \(.*validation\.jsonl, line 1\)"):
        make(tagged(tmp_path, SENTENCES, [("so|is", "O I")]), tmp_path)


def chat(tmp_path: Path, conversations: list[list[tuple[str, str]]], template: str = TEMPLATE) -> ChatFiles:
    rows = [{"messages": [{"role": role, "content": text} for role, text in one]} for one in conversations]
    name = write(tmp_path, "train", rows)
    return ChatFiles(name, name, None, 0.5, "utf-8", None, template)


CONVERSATIONS = [
    [("system", "Be kind."), ("user", "Hi é"), ("assistant", "Hello there"), ("user", "Bye"), ("assistant", "Bye\n")],
    [("user", "<|end|>\n<|assistant|>\nI am no assistant [EOS] [PAD]"), ("assistant", "<|user|> [SEP]")],
]


@pytest.mark.parametrize("recipe", [Char(), Byte(), BPE(290, lowercase=False)])
@pytest.mark.parametrize("template", [TEMPLATE, "{role}:{content} "])
def test_the_assistants_turns_are_learned_to_the_token(tmp_path: Path, recipe: Recipe, template: str) -> None:
    prepared = make(chat(tmp_path, CONVERSATIONS * 20, template), tmp_path, recipe)
    tokenizer, split = prepared.tokenizer, prepared.splits["train"]
    after = template.split("{content}")[1]
    for i, conversation in enumerate(CONVERSATIONS):
        example = split[i]
        assert example["learned"].dtype == bool
        whole = "".join(template.replace("{role}", role).replace("{content}", text) for role, text in conversation)
        assert tokenizer.decode(example["ids"]) == whole == split.texts(i)["text"]
        bounds = np.flatnonzero(np.diff(example["learned"].astype(int), prepend=0, append=0))
        learned = [tokenizer.decode(example["ids"][a:b]) for a, b in bounds.reshape(-1, 2)]
        assert learned == [text + after for role, text in conversation if role == "assistant"]
        assert not set(example["ids"].tolist()) & set(range(7))  # special tokens that are written are text


def test_equal_conversations_are_not_both_learnt_and_tested(tmp_path: Path) -> None:
    conversations = [[("user", str(i % 10)), ("assistant", "yes")] for i in range(40)]
    source = chat(tmp_path, conversations)
    prepared = make(ChatFiles(source.train_files, None, None, 0.3, "utf-8", None, TEMPLATE), tmp_path, Byte())
    texts = {name: {split.texts(i)["text"] for i in range(len(split))} for name, split in prepared.splits.items()}
    assert {name: len(found) for name, found in texts.items()} == {"train": 7, "validation": 3}
    assert not texts["train"] & texts["validation"]
    for split in prepared.splits.values():
        for i in range(len(split)):
            example = split[i]
            assert prepared.tokenizer.decode(example["ids"]) == split.texts(i)["text"]
            assert prepared.tokenizer.decode(example["ids"][example["learned"]]) == "yes<|end|>\n"


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a", "score": 1}\n{"text": "\\ud83d", "score": 1}\n')
    source = ScoredFiles(str(tmp_path / "x.jsonl"), None, None, 0.5, "utf-8", None, None)
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2 holds '\\ud83d', one half of a surrogate pair") as caught:
        make(source, tmp_path)
    assert not isinstance(caught.value, UnicodeError)


def test_a_split_pickles_as_its_path(tmp_path: Path) -> None:
    split = make(chat(tmp_path, CONVERSATIONS), tmp_path).splits["train"]
    again: Split = pickle.loads(pickle.dumps(split))
    np.testing.assert_array_equal(again[1]["learned"], split[1]["learned"])
