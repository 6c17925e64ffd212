"""Against the sentencepiece library, with models that it trains here, and one of karpathy/llama2.c."""

import io
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from triform.data.prepare import prepare
from triform.data.sources.tagged import TaggedFiles
from triform.data.tokenizers import Pretrained, Tokenizer

WORDS = [f"{a}{b}{c}" for a in ("st", "h", "br", "ka") for b in ("o", "ei", "ü") for c in ("ne", "g", "chen", "t")]
CORPUS = [
    " ".join(WORDS[(7 * i + j * j) % len(WORDS)] + ("." if j % 5 == 4 else "") for j in range(9)) for i in range(200)
]
HARD = [
    "",
    " ",
    "  two  blanks  ",
    "\ttab\nline",
    " lead",
    "trail  ",
    "<s> </s> <unk> x<s>y",
    "naïve ½ 😀 ﬁ x́ ｆｕｌｌ",  # noqa: RUF001
    "\x00a\u200bb",
    "▁h ▁",
    "hohohohohohoho",
    "stststststst.",
    "日本語 テスト",
    "h<sep>g <sep> t",
]

MODELS: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram"},
    "bpe": {"model_type": "bpe"},
    "characters": {"model_type": "char"},
    "unigram with bytes": {
        "model_type": "unigram",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "bpe as LLaMA's": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
    },
    "unigram without a blank before": {"model_type": "unigram", "add_dummy_prefix": False},
    "unigram over words' ends": {"model_type": "unigram", "split_by_whitespace": False},
    "unigram with pieces of the user's own": {
        "model_type": "unigram",
        "user_defined_symbols": ["<sep>", "[MASK]"],
        "control_symbols": ["[CLS]"],
        "pad_id": 3,
    },
    "bpe with pieces of the user's own": {
        "model_type": "bpe",
        "user_defined_symbols": ["<sep>"],
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    },
}


@cache
def trained(name: str) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=written,
        vocab_size=360 if "bytes" in name or "LLaMA" in name else 90,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **MODELS[name],
    )
    return written.getvalue()


def read(folder: Path, data: bytes) -> Tokenizer:
    (folder / "tokenizer.model").write_bytes(data)
    return Tokenizer.load(folder)


@pytest.mark.parametrize("name", MODELS)
def test_ids_and_texts_are_theirs(name: str, tmp_path: Path) -> None:
    theirs, tokenizer = sentencepiece.SentencePieceProcessor(model_proto=trained(name)), read(tmp_path, trained(name))
    assert [tokenizer.backend.id_to_token(i) for i in range(tokenizer.vocab_size)] == [
        theirs.id_to_piece(i) for i in range(theirs.get_piece_size())
    ]
    texts = CORPUS + HARD
    expected = theirs.encode(texts)
    assert tokenizer.encode_batch(texts) == expected
    known = [ids for ids in expected if theirs.unk_id() not in ids]
    assert len(known) >= len(CORPUS)
    assert [tokenizer.decode(ids) for ids in known] == theirs.decode(known)


@pytest.mark.parametrize("name", ["unigram", "bpe as LLaMA's"])
def test_saved_it_is_the_same(name: str, tmp_path: Path) -> None:
    tokenizer = read(tmp_path, trained(name))
    tokenizer.save(tmp_path / "run")
    again = Tokenizer.load(tmp_path / "run")
    assert again.encode_batch(CORPUS + HARD) == tokenizer.encode_batch(CORPUS + HARD)
    assert (again.unk_id, again.bos_id, again.eos_id) == (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)


def test_special_pieces_have_their_roles(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, trained("unigram with pieces of the user's own"))
    assert tokenizer.roles == {
        "unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>", "cls": "[CLS]", "mask": "[MASK]"
    }  # fmt: skip
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2, 3)


@pytest.mark.parametrize("name", ["unigram", "bpe as LLaMA's", "bpe with pieces of the user's own"])
def test_tagged_words_are_read_as_in_their_sentence(name: str, tmp_path: Path) -> None:
    """A blank before each, be it the tokenizer's own, and not two."""
    source = tmp_path / "train.conll"
    words = CORPUS[0].split()
    source.write_text("".join(f"{word}\tX\n" for word in words), encoding="utf-8")
    (tmp_path / "tokenizer.model").write_bytes(trained(name))
    tagged = TaggedFiles(str(source), str(source), None, 0.1, "utf-8", None, None)
    prepared = prepare(tagged, Pretrained(str(tmp_path)), tmp_path / "cache", progress=False)
    example = prepared.splits["train"][0]
    assert example["ids"].tolist() == prepared.tokenizer.encode(" ".join(words))
    assert int((example["tags"] >= 0).sum()) == len(words)


def test_a_byte_that_somebody_wrote_is_text(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, trained("unigram with bytes"))
    assert tokenizer.decode(tokenizer.encode("h <0x0A> t\n")) == "h <0x0A> t\n"


def test_a_file_has_a_name_of_its_own_choice(tmp_path: Path) -> None:
    (tmp_path / "mine.model").write_bytes(trained("bpe"))
    recipe = Pretrained(str(tmp_path / "mine.model"))
    (tmp_path / "spiece.model").write_bytes(trained("bpe"))
    assert repr(recipe) == repr(Pretrained(str(tmp_path)))  # the same content
    assert recipe.train(iter(())).encode("stone") == Tokenizer.load(tmp_path).encode("stone")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is no model of SentencePiece"),
        (b"\x00\xff text", "it is no model of SentencePiece"),
        (b'{"model": 3}', "it is no model of SentencePiece"),
    ],
    ids=["empty", "other", "json"],
)
def test_another_file_is_refused(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"tokenizer\.model cannot be read \({reason}\); put it back"):
        read(tmp_path, data)


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    data = trained("unigram")
    for end in (1, len(data) // 3, len(data) - 1):
        with pytest.raises(ValueError, match=r"tokenizer\.model cannot be read"):
            read(tmp_path, data[:end])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model_type": "word"}, "only Unigram, BPE and characters are read"),
        ({"model_type": "bpe", "treat_whitespace_as_suffix": True}, "with blanks as marks in front of words"),
        ({"model_type": "bpe", "user_defined_symbols": ["<sep>"]}, "'<sep>' is always whole"),
    ],
    ids=["words", "suffix", "own pieces"],
)
def test_what_would_come_out_otherwise_is_refused(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    MODELS[reason] = settings
    with pytest.raises(ValueError, match=reason):
        read(tmp_path, trained(reason))
    del MODELS[reason]


def varint(value: int) -> bytes:
    rest, low = value >> 7, value & 0x7F
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, value: int | bytes | float) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def test_stories_of_llama2c(tmp_path: Path, shared: Path) -> None:
    """The pieces and scores of tok512.bin as a model, against the library and the tokenizer.json made of them."""
    folder = shared / "stories260K"
    data, place, model = (folder / "tok512.bin").read_bytes(), 4, b""
    for i in range(512):
        score, length = struct.unpack_from("<fi", data, place)
        piece = data[place + 8 : place + 8 + length]
        place += 8 + length
        kind = 2 if i == 0 else 3 if i < 3 else 6 if i < 259 else 1
        name = {0: b"<unk>", 1: b"<s>", 2: b"</s>"}.get(i, piece)
        model += field(1, field(1, name.replace(b" ", "▁".encode())) + field(2, score) + field(3, kind))
    model += field(2, field(3, 2) + field(35, 1)) + field(3, field(1, b"identity") + field(4, 0))
    tokenizer, converted = read(tmp_path, model), Tokenizer.load(folder / "hf")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    english = (shared / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8").splitlines()[:2000]
    texts = [*english, *HARD, "Once upon a time, there was a little girl named Lily.", "naïve 😀"]
    assert tokenizer.encode_batch(texts) == theirs.encode(texts)
    stories = [text for text in texts if text and not text.startswith(" ")]
    assert converted.encode_batch(stories) == theirs.encode(stories)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts if "▁" not in text] == [
        text for text in texts if "▁" not in text
    ]
