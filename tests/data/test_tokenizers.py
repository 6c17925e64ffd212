from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from triform.data.tokenizers import BPE, SPECIAL_TOKENS, Byte, Char, Recipe, Tokenizer, Word

CORPUS = ["hug pug pun bun hugs\n", "the hugs of a pug, the pun of a bun.\n"]
HARD = "tab\tline\n  two  blanks [EOS] naïve ½ 😀 \x00 \r\n"

RECIPES: list[Recipe] = [Char(), Byte(), BPE(280), Word(40, lowercase=True, split_punctuation=True)]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
class TestEveryRecipe:
    def test_special_tokens_have_fixed_ids(self, recipe: Recipe) -> None:
        tokenizer = recipe.train(iter(CORPUS))
        assert [tokenizer.backend.id_to_token(i) for i in range(7)] == list(SPECIAL_TOKENS)
        assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2, 3)
        assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (4, 5, 6)

    def test_special_tokens_in_text_are_text(self, recipe: Recipe) -> None:
        tokenizer = recipe.train(iter(CORPUS))
        assert not {0, 2, 3, 4, 5, 6} & set(tokenizer.encode("".join(SPECIAL_TOKENS)))

    def test_decoding_skips_special_tokens_and_padded_ids(self, recipe: Recipe) -> None:
        tokenizer = recipe.train(iter(CORPUS))
        ids = tokenizer.encode("pug")
        assert tokenizer.decode([2, *ids, 3, 0, 0, tokenizer.vocab_size + 5]) == "pug"

    def test_batch_equals_one_by_one(self, recipe: Recipe) -> None:
        tokenizer = recipe.train(iter(CORPUS))
        texts = ["pun", "", HARD]
        assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]

    def test_training_twice_gives_the_same(self, recipe: Recipe) -> None:
        assert recipe.train(iter(CORPUS)).backend.to_str() == recipe.train(iter(CORPUS)).backend.to_str()

    def test_saved_loads_here_and_in_transformers(self, recipe: Recipe, tmp_path: Path) -> None:
        tokenizer = recipe.train(iter(CORPUS))
        tokenizer.save(tmp_path)
        expected = tokenizer.encode(HARD)
        assert Tokenizer.load(tmp_path).encode(HARD) == expected
        theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
        assert theirs(HARD, add_special_tokens=False).input_ids == expected
        assert (theirs.pad_token_id, theirs.mask_token_id) == (0, 6)
        assert theirs.decode(tokenizer.encode("hug pun")) == "hug pun"


@pytest.mark.parametrize("recipe", [Byte(), BPE(280)], ids=["Byte", "BPE"])
def test_bytes_come_back_exactly(recipe: Recipe) -> None:
    tokenizer = recipe.train(iter(CORPUS))
    assert tokenizer.decode(tokenizer.encode(HARD)) == HARD
    assert tokenizer.unk_id not in tokenizer.encode(HARD)


def test_byte_has_a_token_for_each_byte() -> None:
    tokenizer = Byte().train(iter([]))
    assert tokenizer.vocab_size == 7 + 256
    assert len(tokenizer.encode("a½")) == 3


def test_char_marks_what_it_has_not_seen() -> None:
    tokenizer = Char().train(iter(["hug pug pun bun hugs"]))
    assert tokenizer.vocab_size == 7 + len(set("hug pug pun bun hugs"))
    # Nothing is dropped: 4 characters are 4 ids.
    assert tokenizer.encode("mug😀") == [1, tokenizer.encode("u")[0], tokenizer.encode("g")[0], 1]


def test_word_keeps_the_most_frequent() -> None:
    tokenizer = Word(9, lowercase=True, split_punctuation=True).train(iter(["the The cat, the cat sat"]))
    assert tokenizer.decode(tokenizer.encode("The cat sat")) == "the cat"
    assert tokenizer.encode("sat") == [tokenizer.unk_id]


def test_word_can_split_at_blanks_alone() -> None:
    tokenizer = Word(20, lowercase=False, split_punctuation=False).train(iter(["AH0 K-T AH0"]))
    assert tokenizer.pieces(tokenizer.encode("K-T AH0")) == ["K-T", "AH0"]


def test_pieces_name_special_tokens() -> None:
    tokenizer = BPE(280).train(iter(CORPUS))
    assert tokenizer.pieces([2, *tokenizer.encode("z"), 3]) == ["[BOS]", "z", "[EOS]"]


def test_bpe_refuses_a_vocabulary_without_room_for_bytes() -> None:
    with pytest.raises(ValueError, match=r"BPE: vocab_size=100 .*set tokenizer\.vocab_size to 263 or more"):
        BPE(100)


def test_word_refuses_a_vocabulary_without_room_for_words() -> None:
    with pytest.raises(ValueError, match=r"Word: vocab_size=7 .*set tokenizer\.vocab_size to 8 or more"):
        Word(7, True, True)


def test_loading_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json does not exist"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}'])
def test_a_broken_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read .*; put it back as it was saved"):
        Tokenizer.load(tmp_path)
