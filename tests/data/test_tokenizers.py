import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from triform.data.tokenizers import BPE, SPECIAL_TOKENS, Byte, Char, Pretrained, Recipe, Tokenizer, Word

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


def foreign(folder: Path, roles: dict[str, object] | None, file: str = "tokenizer_config.json") -> Path:
    """A tokenizer of others: words, with the special tokens of LLaMA at other places than ours."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    backend = Backend(models.WordLevel({"a": 0, "<unk>": 1, "b": 2, "</s>": 3, "<s>": 4, "<mask>": 7}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<unk>", "</s>", "<s>"])
    backend.enable_truncation(1)
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if roles is not None:
        (folder / file).write_text(json.dumps(roles), encoding="utf-8")
    return folder


def test_a_tokenizer_of_others_keeps_its_special_tokens(tmp_path: Path) -> None:
    roles = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = Tokenizer.load(foreign(tmp_path, roles, "special_tokens_map.json"))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id) == (4, 3, 1, None)
    assert (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id) == (3, 4, 3)  # served by others
    assert tokenizer.vocab_size == 8  # ids are counted, not tokens: two are nobody's
    assert tokenizer.ordinary_ids.tolist() == [0, 2, 7]
    assert tokenizer.encode("a b <s>") == [0, 2, 1, 1, 1]  # written in text it is text; and nothing is cut off
    assert tokenizer.pieces([4, 0]) == ["<s>", "a"]
    tokenizer.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.roles == tokenizer.roles
    assert again.encode("b a") == [2, 0]


def test_where_a_decoder_starts_is_read_of_the_model_beside(tmp_path: Path) -> None:
    folder = foreign(tmp_path, {"bos_token": "<s>", "eos_token": "</s>"})
    assert Tokenizer.load(folder).start_id == 4  # as it begins any text
    (folder / "config.json").write_text('{"decoder_start_token_id": 3}', encoding="utf-8")
    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.start_id, tokenizer.bos_id) == (3, 4)
    tokenizer.save(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again").start_id == 3
    (folder / "config.json").write_text('{"decoder_start_token_id": 99}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"decoder_start_token_id=99 is no token of tokenizer.json; set it to one"):
        Tokenizer.load(folder)


def test_usual_names_serve_where_no_file_names_them(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(foreign(tmp_path, None))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id) == (4, 3, 7)


def test_a_role_without_a_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no token is named for bos, eos, cls, sep, pad; name them in"):
        Tokenizer.load(foreign(tmp_path / "a", {"unk_token": 3, "mask_token": "<mask>"}))
    with pytest.raises(ValueError, match=r"bos_token '<begin>' is not in the vocabulary"):
        Tokenizer.load(foreign(tmp_path / "b", {"bos_token": "<begin>"}))


def test_a_copy_of_a_tokenizer_is_the_same_recipe(tmp_path: Path) -> None:
    first, second = (Pretrained(str(foreign(tmp_path / name, {"eos_token": "</s>"}))) for name in ("a", "b"))
    assert repr(first) == repr(second)
    assert first.train(iter(())).eos_id == 3
    foreign(tmp_path / "b", {"eos_token": "<s>"})
    assert repr(first) != repr(second)
