"""Tables of more or fewer rows than a tokenizer has tokens, and tokenizers of other libraries' files."""

import io
import shutil
from pathlib import Path

import pytest
import sentencepiece
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import triform
from triform.run.compose import compose
from triform.run.initial import fill
from triform.run.parts import model_factory

ROWS = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaMA with a table of 128 rows and a SentencePiece model of 100 tokens at most."""
    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=ROWS, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    written = io.BytesIO()
    words = [f"{a}{b}{c}" for a in "kltm" for b in "aeiou" for c in "nrst"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(words)] * 3), model_writer=written, model_type="bpe", vocab_size=60,
        hard_vocab_limit=False, num_threads=1, minloglevel=2,
    )  # fmt: skip
    (path / "tokenizer.model").write_bytes(written.getvalue())
    return path


def test_a_pretrained_model_brings_its_sentencepiece_model(folder: Path) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    _, tokenizer = triform.from_pretrained(folder)
    assert tokenizer is not None
    assert tokenizer.encode("kan tes") == theirs.encode("kan tes")
    config = compose(["model=from_pretrained", f"model.path={folder}", "data=text", "data.train_files=x.txt"])
    assert config["tokenizer"]["path"] == str(folder.resolve())


def test_a_table_never_shrinks_and_grows_at_its_end(folder: Path, tmp_path: Path) -> None:
    """Its old rows stay bit for bit, the tied head has as many, and rows without a token are never produced."""
    path = shutil.copytree(folder, tmp_path / "copy")
    config = compose(["model=from_pretrained", f"model.path={path}", "data=text", "data.train_files=x.txt"])
    before = triform.from_pretrained(path)[0].get_parameter("embedding.table.weight")
    ids = torch.tensor([[1, 7, 9]])
    for tokens, rows in ((100, 128), (103, 128), (129, 129)):
        node = config["model"] | ({"vocab_size": None} if tokens > ROWS else {})
        model = model_factory({**config, "model": node}, tokens)()
        model.initialise(0)
        fill(model, str(path), say=False)
        table = model.get_parameter("embedding.table.weight")
        assert table.shape[0] == rows
        assert torch.equal(table[:ROWS], before)
        assert model(ids).logits.shape[-1] == tokens
    with pytest.raises(ValueError, match=r"vocab_size=128 is below the 129 tokens .*set model\.vocab_size to null"):
        model_factory(config, 129)
