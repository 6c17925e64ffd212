"""What of a text a task does not read is said."""

from pathlib import Path

from triform.data.prepare import Prepared, Split, prepare
from triform.data.sources.pairs import PairFiles
from triform.data.tokenizers import Char, Recipe, WordPiece
from triform.tasks.image_classification import ImageClassification
from triform.tasks.objective import Objective
from triform.tasks.seq2seq import Seq2Seq


def pairs(folder: Path, text: str, recipe: Recipe) -> Prepared:
    (folder / "x.tsv").write_text(text, encoding="utf-8")
    name = str(folder / "x.tsv")
    return prepare(PairFiles(name, name, None, 0.1, "utf-8", 0, 1), recipe, folder / "cache", progress=False)


def seq2seq(prepared: Prepared, seq_len: int) -> Objective:
    return Seq2Seq(
        0.0, "torch", 0.0, "never",
        family="encoder_decoder", tokenizer=prepared.tokenizer, labels=None, seq_len=seq_len, seed=0,
    )  # fmt: skip


def test_examples_that_are_cut_are_counted(tmp_path: Path) -> None:
    prepared = pairs(tmp_path, "abc\tabcdefg\nabcdefgh\ta\na\tb\n", Char())
    train = prepared.splits["train"]
    assert seq2seq(prepared, 6).left_out("training", train) == [
        "2 of 3 training examples are longer than 5 tokens and are cut, by data.seq_len (the longest has 8)"
    ]
    assert seq2seq(prepared, 9).left_out("training", train) == []


def test_texts_that_a_tokenizer_makes_nothing_of_are_counted(tmp_path: Path) -> None:
    """WordPiece drops control characters, as BERT does."""
    recipe = WordPiece(11, lowercase=False, strip_accents=False)
    prepared = pairs(tmp_path, "a\tb\n\u200b\ta\nb\ta\nc\tb\n", recipe)
    assert seq2seq(prepared, 6).left_out("training", prepared.splits["train"]) == [
        "1 of 4 training examples have a text without a token, which is read as empty"
    ]


def test_images_have_no_lengths(tmp_path: Path) -> None:
    task = ImageClassification(
        0.0, None, "first", 0.0, 0, False,
        family="encoder", tokenizer=None, labels=["a", "b"], seq_len=5, seed=0,
    )  # fmt: skip
    assert task.left_out("training", Split("images", tmp_path / "train", "uint16", (1, 2, 2))) == []
