import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from triform.data.tokenizers import (
    BPE,
    SPECIAL_TOKENS,
    Byte,
    Char,
    Pretrained,
    Recipe,
    Tokenizer,
    Unigram,
    Word,
    WordPiece,
)

CORPUS = ["hug pug pun bun hugs\n", "the hugs of a pug, the pun of a bun.\n", " [EOS] ".join(SPECIAL_TOKENS)]
HARD = "tab\tline\n  two  blanks [EOS] naïve ½ 😀 \x00 \r\n"

RECIPES: dict[str, Recipe] = {
    "char": Char(),
    "byte": Byte(),
    "bpe": BPE(280, lowercase=False),
    "word": Word(40, lowercase=True, split_punctuation=True),
    "words between blanks": Word(40, lowercase=False, split_punctuation=False),
    "wordpiece": WordPiece(80, lowercase=True, strip_accents=True),
    "unigram": Unigram(275, lowercase=False),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
class TestEveryRecipe:
    def test_special_tokens_have_fixed_ids(self, recipe: Recipe) -> None:
        tokenizer = recipe.train(iter(CORPUS))
        assert [tokenizer.backend.id_to_token(i) for i in range(7)] == list(SPECIAL_TOKENS)
        assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2, 3)
        assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (4, 5, 6)

    def test_special_tokens_in_text_are_text(self, recipe: Recipe) -> None:
        tokenizer = recipe.train(iter(CORPUS))
        for text in ("".join(SPECIAL_TOKENS), *SPECIAL_TOKENS, " ".join(SPECIAL_TOKENS), "a[EOS]b"):
            assert not {0, 2, 3, 4, 5, 6} & {*tokenizer.encode(text), *tokenizer.encode_batch([text])[0]}
            assert not {0, 2, 3, 4, 5, 6} & set(tokenizer.encode_with_places([text])[0][0])

    def test_decoding_skips_special_tokens_and_padded_ids(self, recipe: Recipe) -> None:
        tokenizer = recipe.train(iter(CORPUS))
        ids = tokenizer.encode("pug")
        assert tokenizer.decode([2, *ids, 3, 0, 0, tokenizer.vocab_size + 5]) == "pug"

    def test_batch_equals_one_by_one(self, recipe: Recipe) -> None:
        tokenizer = recipe.train(iter(CORPUS))
        texts = ["pun", "", HARD]
        assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]

    def test_large_texts_get_the_same_ids(self, recipe: Recipe, tmp_path: Path) -> None:
        recipe.train(iter(CORPUS)).save(tmp_path)
        tokenizer = Tokenizer.load(tmp_path)  # as a run reads it
        every = "".join(map(chr, [*range(0x800), 0x20AC, 0xFFFD, *range(0x1F600, 0x1F610), 0x10FFFF]))
        texts = ["pun", "", HARD, *SPECIAL_TOKENS, every, "", " "]
        ids, lengths = tokenizer.encode_flat(texts)
        expected = [tokenizer.encode(text) for text in texts]
        assert lengths.tolist() == [len(tokens) for tokens in expected]
        assert ids.tolist() == [number for tokens in expected for number in tokens]
        assert [len(part) for part in tokenizer.encode_flat([])] == [0, 0]

    def test_training_twice_gives_the_same(self, recipe: Recipe) -> None:
        assert recipe.train(iter(CORPUS)).backend.to_str() == recipe.train(iter(CORPUS)).backend.to_str()

    def test_saved_loads_here_and_in_transformers(self, recipe: Recipe, tmp_path: Path) -> None:
        tokenizer = recipe.train(iter(CORPUS))
        tokenizer.save(tmp_path)
        assert Tokenizer.load(tmp_path).encode(HARD) == tokenizer.encode(HARD)
        theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
        plain = HARD.replace("[EOS]", "[ ]")  # where a special token is a word of the vocabulary, theirs finds it
        assert theirs(plain, add_special_tokens=False).input_ids == tokenizer.encode(plain)
        assert (theirs.pad_token_id, theirs.mask_token_id) == (0, 6)
        assert theirs.decode(tokenizer.encode("hug pun")) == "hug pun"


@pytest.mark.parametrize(
    "recipe", [Byte(), BPE(280, lowercase=False), Unigram(275, lowercase=False)], ids=["Byte", "BPE", "Unigram"]
)
def test_bytes_come_back_exactly(recipe: Recipe) -> None:
    tokenizer = recipe.train(iter(CORPUS))
    assert tokenizer.decode(tokenizer.encode(HARD)) == HARD
    assert tokenizer.unk_id not in tokenizer.encode(HARD)


@pytest.mark.parametrize("recipe", [BPE(290, lowercase=True), Unigram(285, lowercase=True)], ids=["BPE", "Unigram"])
def test_bytes_in_lower_case_lose_nothing_but_the_case(recipe: Recipe, tmp_path: Path) -> None:
    tokenizer = recipe.train(iter([text.upper() for text in CORPUS]))
    assert tokenizer.encode("HUG Pun") == tokenizer.encode("hug pun")
    assert len(tokenizer.encode("HUGS")) < 4  # pieces are of lower case, too
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).decode(tokenizer.encode(HARD)) == HARD.lower()


ANOTHER_PROCESS = """
import gzip, sys
from triform.data.tokenizers import *
recipe = {recipe}
texts = [f"{{word}} and {{word[::-1]}}s of {{word}}ing" for word in {words}]
sys.stdout.write(recipe.train(iter(texts)).backend.to_str())
"""


@pytest.mark.parametrize(
    "recipe",
    [BPE(300, lowercase=False), Word(40, True, True), WordPiece(90, True, False), Unigram(330, lowercase=False)],
    ids=repr,
)
def test_training_is_the_same_in_every_process(recipe: Recipe) -> None:
    """For any number of threads, and with ties, which are broken by nothing that differs."""
    words = [f"{a}{b}{c}a" for a in "kltm" for b in "aeiou" for c in "nrst"]
    code = ANOTHER_PROCESS.format(recipe=recipe, words=words)
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "RAYON_NUM_THREADS": threads},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for threads in ("1", "2", "3")
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    "recipe",
    [BPE(9000, lowercase=False), Word(9000, True, True), WordPiece(9000, True, True), Unigram(9000, lowercase=False)],
    ids=repr,
)
def test_a_vocabulary_that_the_text_does_not_give_is_said(recipe: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = recipe.train(iter(CORPUS))
    said = f"gives a vocabulary of {tokenizer.vocab_size} tokens, tokenizer.vocab_size=9000 asks for more"
    assert said in caplog.text


def test_no_vocabulary_is_larger_than_asked(caplog: pytest.LogCaptureFixture) -> None:
    text = "".join(chr(0x4E00 + i) for i in range(300)) + " ".join(f"w{i}{i}x" for i in range(400))
    for recipe in (
        BPE(300, lowercase=False),
        Word(50, True, True),
        WordPiece(16, True, True),
        WordPiece(60, True, True),
        Unigram(290, lowercase=False),
    ):
        assert recipe.train(iter([text] * 3)).vocab_size == recipe.vocab_size
    assert not caplog.text


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
    tokenizer = BPE(280, lowercase=False).train(iter(CORPUS))
    assert tokenizer.pieces([2, *tokenizer.encode("z"), 3]) == ["[BOS]", "z", "[EOS]"]


def test_wordpiece_takes_the_longest_piece_first() -> None:
    """As BERT's tokenizer in transformers does with the same vocabulary."""
    tokenizer = WordPiece(60, lowercase=True, strip_accents=True).train(iter(CORPUS * 3))
    theirs = BertTokenizer(vocab=tokenizer.backend.get_vocab(), do_lower_case=True)
    for text in ("Hügs, of-a PUG?", "pugs bunpug", "naïve 東京 \x00 x"):
        assert tokenizer.encode(text) == theirs(text, add_special_tokens=False).input_ids
    assert [tokenizer.backend.id_to_token(i) for i in tokenizer.encode("hugunos")] == ["hug", "##un", "##os"]
    assert tokenizer.encode("zug") == [tokenizer.unk_id]  # a letter is not known: the word is not
    assert tokenizer.decode(tokenizer.encode("The pugun.")) == "the pugun ."


def test_unigram_takes_the_likeliest_pieces() -> None:
    tokenizer = Unigram(275, lowercase=False).train(iter(CORPUS))
    scores = dict(json.loads(tokenizer.backend.to_str())["model"]["vocab"])
    cuts: list[list[str]] = [[]]
    for letter in "hugs":
        cuts = [way for cut in cuts for way in ([*cut, letter], [*cut[:-1], "".join(cut[-1:]) + letter])]
    known = [cut for cut in cuts if all(piece in scores for piece in cut)]
    best = max(known, key=lambda cut: sum(scores[piece] for piece in cut))
    assert tokenizer.pieces(tokenizer.encode("hugs")) == best
    assert len(best) < 4


def test_bpe_refuses_a_vocabulary_without_room_for_bytes() -> None:
    with pytest.raises(ValueError, match=r"BPE: vocab_size=100 .*set tokenizer\.vocab_size to 263 or more"):
        BPE(100, lowercase=False)


def test_word_refuses_a_vocabulary_without_room_for_words() -> None:
    with pytest.raises(ValueError, match=r"Word: vocab_size=7 .*set tokenizer\.vocab_size to 8 or more"):
        Word(7, True, True)


@pytest.mark.parametrize(
    ("build", "least"),
    [(lambda n: WordPiece(n, True, True), 9), (lambda n: Unigram(n, lowercase=False), 264)],
    ids=["wordpiece", "unigram"],
)
def test_others_refuse_a_vocabulary_without_room(build: Callable[[int], Recipe], least: int) -> None:
    build(least).train(iter(CORPUS))
    with pytest.raises(ValueError, match=rf"vocab_size={least - 1} .*set tokenizer\.vocab_size to {least} or more"):
        build(least - 1)


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
    with pytest.raises(ValueError, match="no token is named for bos, eos, cls, sep; name them in"):
        Tokenizer.load(foreign(tmp_path / "a", {"unk_token": 3, "mask_token": "<mask>"}))
    with pytest.raises(ValueError, match=r"bos_token '<begin>' is not in the vocabulary"):
        Tokenizer.load(foreign(tmp_path / "b", {"bos_token": "<begin>"}))


def test_a_copy_of_a_tokenizer_is_the_same_recipe(tmp_path: Path) -> None:
    first, second = (Pretrained(str(foreign(tmp_path / name, {"eos_token": "</s>"}))) for name in ("a", "b"))
    assert repr(first) == repr(second)
    assert first.train(iter(())).eos_id == 3
    foreign(tmp_path / "b", {"eos_token": "<s>"})
    assert repr(first) != repr(second)


LOSSY = {
    "BPE": models.BPE({"h": 0, "u": 1, "g": 2, "ug": 3, "</s>": 4}, [("u", "g")]),
    "WordLevel": models.WordLevel({"hug": 0, "</s>": 1}, unk_token="<unk>"),
    "WordPiece": models.WordPiece({"hug": 0, "</s>": 1}, unk_token="<unk>"),
    "Unigram": models.Unigram([("hug", -1.0), ("</s>", 0.0)]),
}


@pytest.mark.parametrize("name", LOSSY)
def test_what_would_lose_text_is_refused(name: str, tmp_path: Path) -> None:
    """A BPE without an unknown token makes "ug" of "mug"; the others end with an error in the midst of the data."""
    Backend(LOSSY[name]).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=rf"its {name} has no token for what is not in the vocabulary and would lose"):
        Tokenizer.load(tmp_path)


def test_bytes_lose_nothing_if_all_are_there(tmp_path: Path) -> None:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(False)])
    backend.decoder = decoders.ByteLevel()
    specials = ["</s>"]
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(special_tokens=specials, show_progress=False))
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="its BPE has no token for what is not in the vocabulary"):
        Tokenizer.load(tmp_path)  # it has seen some of the bytes only
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.unk_id is None
    assert tokenizer.decode(tokenizer.encode(HARD)) == HARD


def test_an_unknown_token_of_the_model_is_marked_though_no_file_names_it(tmp_path: Path) -> None:
    model = models.BPE({"<unk>": 0, "h": 1, "u": 2, "g": 3, "ug": 4, "</s>": 5}, [("u", "g")], unk_token="<unk>")
    Backend(model).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}', encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("mug😀") == [0, 4, 0]
    assert tokenizer.unk_id == 0


SPECIALS_IN_VOCABULARY: dict[str, tuple[models.Model, list[int]]] = {
    "words": (models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, "<unk>"), [0, 2]),
    "pieces of words": (models.WordPiece({"<unk>": 0, "</s>": 1, "a": 2, "<": 3, "##/": 4}, unk_token="<unk>"), [0, 2]),
    "merges": (
        models.BPE(
            {"<unk>": 0, "</s>": 1, "a": 2, "<": 3, "/": 4, "s": 5, ">": 6, "</": 7, "s>": 8},
            [("<", "/"), ("s", ">"), ("</", "s>")],
            unk_token="<unk>",
        ),
        [7, 8, 2],
    ),
    "whole words of a BPE": (
        models.BPE(
            {"<unk>": 0, "</s>": 1, "a": 2, "<": 3, "/": 4, "s": 5, ">": 6, "</": 7},
            [("<", "/")],
            unk_token="<unk>",
            ignore_merges=True,
        ),
        [7, 5, 6, 2],
    ),
    "probabilities": (
        models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0), ("</", -2.0), ("s", -3.0), (">", -3.0)], 0),
        [3, 4, 5, 2],
    ),
}


@pytest.mark.parametrize("name", SPECIALS_IN_VOCABULARY)
def test_special_tokens_of_others_in_text_are_text(name: str, tmp_path: Path) -> None:
    """Also where the model itself, not the search for special tokens, would find them."""
    model, expected = SPECIALS_IN_VOCABULARY[name]
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert backend.encode("</s> a").ids == [1, 2]
    backend.add_special_tokens(["<unk>", "</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("</s> a") == expected
    assert tokenizer.encode_batch(["</s> a"]) == [expected]
    assert tokenizer.eos_id == 1
    tokenizer.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert (again.encode("</s> a"), again.decode([2, 1]), again.pieces([1])) == (expected, "a", ["</s>"])


def test_own_words_of_others_stay_whole(tmp_path: Path) -> None:
    """Tokens that were added for text are found in it, whatever special ones are left out."""
    backend = Backend(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["</s>", "<late>"])
    backend.add_tokens(["new york"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a new york </s>") == [2, 4, 0, 0, 0]
    assert tokenizer.encode("<late>") == [0, 0, 0]


def test_a_runs_folder_stands_for_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    folder = foreign(tmp_path / "run" / "tokenizer", {"bos_token": "<s>", "eos_token": "</s>"})
    recipe = Pretrained(str(tmp_path / "run"))
    assert recipe.train(iter(())).bos_id == 4
    assert repr(recipe) == repr(Pretrained(str(folder)))


def test_a_file_is_a_tokenizer_too(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "a", {"bos_token": "<s>", "eos_token": "</s>"})
    recipe = Pretrained(str(folder / "tokenizer.json"))
    assert recipe.train(iter(())).bos_id == 4
    assert repr(recipe) == repr(Pretrained(str(folder)))
    with pytest.raises(ValueError, match=r"other\.model does not exist; name a folder"):
        Pretrained(str(tmp_path / "other.model")).train(iter(()))
