"""Sources are read as often as their weights say, and as a function of seed and number alone."""

import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.test_module import PACKED, at, make
from triform.data.mixture import Places, shares
from triform.data.prepare import Prepared, prepare
from triform.data.sources.base import Row
from triform.data.sources.labelled import LabelledFiles
from triform.data.sources.mixture import Mixture
from triform.data.sources.text import TextFiles
from triform.data.tokenizers import Char

LENGTHS = [
    np.array([[5, 2], [1, 9], [3, 3]]),
    np.stack([np.arange(1, 11), np.arange(11, 1, -1)], 1),
    np.array([[7, 7]] * 2),
]


@pytest.mark.parametrize("weights", [(2, 1, 1), (1, 1, 1), (1, 20, 1), (100, 1, 0.01), (3, 10, 2)])
def test_every_example_of_a_source_is_read_as_often(weights: tuple[float, ...]) -> None:
    places = Places(LENGTHS, np.array(weights) / sum(weights), seed=5)
    seen: Counter[tuple[int, int]] = Counter()
    readings = set()
    for epoch in range(60):  # a multiple of all counts
        found = [places.find(epoch, place) for place in range(len(places))]
        readings |= set(found)
        seen.update((source, example) for source, example, _ in found)
        for place, (source, example, _) in enumerate(found):
            assert (LENGTHS[source][example] <= places.lengths[place]).all()
    assert len(readings) == 60 * len(places), "no reading has the noise of another"
    for source, lengths in enumerate(LENGTHS):
        assert len({seen[source, example] for example in range(len(lengths))}) == 1


def test_shares_are_rounded_to_whole_places() -> None:
    assert np.bincount(Places(LENGTHS, np.array([0.5, 0.25, 0.25]), 0).sources).tolist() == [7, 4, 4]
    assert np.bincount(Places(LENGTHS, shares(None, ["a", "b", "c"], [3, 10, 2]), 0).sources).tolist() == [3, 10, 2]


def test_without_weights_an_epoch_reads_everything_once() -> None:
    places = Places(LENGTHS, shares({}, ["a", "b", "c"], [3, 10, 2]), seed=1)
    assert {places.find(4, i)[:2] for i in range(15)} == {(s, i) for s, x in enumerate(LENGTHS) for i in range(len(x))}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1, "d": 2}, r"weights has 'd', but the sources are a, b; set data\.weights for those"),
        ({"a": 1}, r"has nothing above 0 for 'b'; set data\.weights\.b, or leave data\.sources\.b out"),
        ({"a": 1, "b": 0}, r"has nothing above 0 for 'b'"),
    ],
)
def test_refuses_other_weights(weights: Mapping[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shares(weights, ["a", "b"], [3, 4])


class Rows:
    """A source of documents in pieces."""

    kind = "text"
    validation_fraction = 0.25

    def __init__(self, *documents: list[str]) -> None:
        self.documents = documents

    def check(self) -> None:
        raise ValueError("Rows: documents is wrong; set data.documents to others, not data.else")

    def fingerprint(self) -> str:
        return repr(self.documents)

    def files(self) -> list[Path]:
        return []

    def load(self) -> Mapping[str, Iterable[Row]]:
        return {"train": ({"text": iter(pieces)} for pieces in self.documents)}


def read(mixture: Mixture, split: str) -> list[tuple[int, str]]:
    return [(row["part"], "".join(row["text"])) for row in mixture.load()[split]]


def test_each_text_is_held_out_from_by_itself() -> None:
    mixture = Mixture({"a": Rows(["abc", "de", "fgh"]), "b": Rows(["12"], ["3", "45"], ["678"], ["9abc"])})
    assert read(mixture, "train") == [(0, "abcdef"), (1, "12"), (1, "345"), (1, "678"), (1, "9")]
    assert read(mixture, "validation") == [(0, "gh"), (1, "abc")]


def test_a_refusal_names_the_key_of_the_source() -> None:
    with pytest.raises(ValueError, match=r"set data\.sources\.b\.documents to others, not data\.else"):
        Mixture({"b": Rows(), "a": Rows()}).check()


def test_refuses_one_source_and_several_kinds() -> None:
    with pytest.raises(ValueError, match=r"sources=\['a'\] are fewer than two; add some"):
        Mixture({"a": Rows()})
    labelled = LabelledFiles("x.tsv", None, None, 0.1, "utf-8", None, None)
    with pytest.raises(ValueError, match=r"several kinds \(a: text, b: labelled\); set data\.sources"):
        Mixture({"a": Rows(), "b": labelled})


@pytest.fixture
def mixed(tmp_path: Path) -> Prepared:
    """Texts of 40 and 12 documents, one of letters, one of digits."""
    sources = {}
    for name, letters, n in (("letters", "abcdefg", 40), ("digits", "0123456", 12)):
        (tmp_path / name).mkdir()
        for i in range(n):
            (tmp_path / name / f"{i:02}.txt").write_text(letters[i % 7] * (1 + i % 8))
        sources[name] = TextFiles(str(tmp_path / name), None, None, 0.2, "utf-8", None)
    return prepare(Mixture(sources), Char(), tmp_path / "cache", progress=False)


def test_prepared_data_says_whose_each_example_is(mixed: Prepared) -> None:
    assert mixed.parts == ["letters", "digits"]
    assert mixed.sizes is not None
    train = mixed.splits["train"]
    text = [train.texts(i)["text"] for i in range(len(train))]
    assert [word.isdigit() for word in text] == [False] * mixed.sizes["train"][0] + [True] * mixed.sizes["train"][1]
    held = [mixed.splits["validation"].texts(i)["text"] for i in range(len(mixed.splits["validation"]))]
    assert {word.isdigit() for word in held} == {False, True}
    assert pickle.loads(pickle.dumps(mixed)).sizes == mixed.sizes


WEIGHTS = {"weights": {"letters": 1, "digits": 2}}


@pytest.mark.parametrize("changes", [{}, {"batch_size": None, "batch_tokens": 40}, PACKED])
def test_weights_are_kept_by_any_number_of_workers_ranks_and_resumes(mixed: Prepared, changes: dict[str, Any]) -> None:
    changes = changes | WEIGHTS
    data = make(mixed, **changes)
    data.total_steps = 3 * data.order.steps_per_epoch
    whole = list(data.train_dataloader())
    digits = mixed.tokenizer.encode("0123456")
    keys = [key for batch in whole for key in batch["keys"]]
    assert len(set(keys)) == len(keys) == 3 * len(data.order.lengths)
    read = [ids for batch in whole for row in batch.get("rows", [batch]) for ids in row["ids"]]
    share = np.mean([bool(set(ids) & set(digits)) for ids in read])
    assert share == pytest.approx(2 / 3, abs=0.03)
    helped = make(mixed, num_workers=2, **changes)
    helped.total_steps = data.total_steps
    assert list(helped.train_dataloader()) == whole
    for step in (1, data.total_steps // 2, data.total_steps - 1):
        later = at(make(mixed, **changes), global_step=step)
        later.total_steps = data.total_steps
        assert list(later.train_dataloader()) == whole[step:]
    parts: list[set[tuple[int, int]]] = [set() for _ in whole]
    for rank in range(3):
        one = at(make(mixed, **changes), world_size=3, global_rank=rank)
        one.total_steps = data.total_steps
        for step, batch in enumerate(one.train_dataloader()):
            parts[step] |= set(batch["keys"])
    assert parts == [set(batch["keys"]) for batch in whole]


def test_refuses_a_source_shorter_than_a_row(mixed: Prepared) -> None:
    with pytest.raises(
        ValueError, match=r"text of data\.sources\.digits in the split train has \d+ tokens, fewer than"
    ):
        make(mixed, seq_len=60)
