"""A BART that others trained, from spelling to phonemes: it must do here what it did there."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from triform.generation import generate
from triform.run.pretrained import from_pretrained, save_pretrained

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "g2p_bart"
PAD, BEGIN, END, UNKNOWN = range(4)

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is not there")


@pytest.fixture(scope="module")
def model() -> Any:
    return from_pretrained(FOLDER / "hf")[0]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
    return content


def spelled(words: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Characters as ids, filled up on the right, and which are real."""
    letters = json.loads((FOLDER / "hf" / "config.json").read_text(encoding="utf-8"))["grapheme_chars"]
    rows = [[BEGIN, *(letters.find(c) if c in letters else UNKNOWN for c in word), END] for word in words]
    ids = torch.full((len(rows), max(map(len, rows))), PAD)
    for row, numbers in zip(ids, rows, strict=True):
        row[: len(numbers)] = torch.tensor(numbers)
    return ids, ids != PAD


def spoken(model: Any, words: list[str]) -> list[str]:
    """What the model writes, greedily, 128 words at a time."""
    sounds = json.loads((FOLDER / "hf" / "config.json").read_text(encoding="utf-8"))["phoneme_chars"]
    written = []
    for begin in range(0, len(words), 128):
        ids, mask = spelled(words[begin : begin + 128])
        out = generate(model, ids, mask, max_new_tokens=63, start_id=BEGIN, eos_id=END, pad_id=PAD)
        written += ["".join(sounds[i] for i in row if i > UNKNOWN) for row in out.tolist()]
    return written


def distance(a: str, b: str) -> int:
    """Least number of characters to change, put in or take out (Levenshtein 1966)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], min(before + (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def gold() -> tuple[list[str], list[str]]:
    with (FOLDER / "g2p_gold_1000.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["word"] for row in rows], [row["phonemes"] for row in rows]


@torch.no_grad()
def test_ids_and_the_first_step(model: Any, expected: dict[str, Any]) -> None:
    ids, mask = spelled(["transformer"])
    assert ids[0].tolist() == expected["input_ids_transformer"]
    top = model(ids, torch.tensor([[BEGIN]]), mask).logits[0, 0].topk(3)
    assert top.indices.tolist() == expected["first_step_top3_ids"]
    torch.testing.assert_close(top.values, torch.tensor(expected["first_step_top3_logits"]), rtol=0, atol=1e-4)


def test_words_come_out_as_expected(model: Any, expected: dict[str, Any]) -> None:
    words = list(expected["greedy"])
    assert spoken(model, words) == list(expected["greedy"].values())
    assert [spoken(model, [word])[0] for word in words] == list(expected["greedy"].values())


def test_gold_pairs(model: Any, expected: dict[str, Any]) -> None:
    words, phonemes = gold()
    assert len(words) == 1000
    written = spoken(model, words)
    exact = sum(map(str.__eq__, written, phonemes)) / len(words)
    errors = sum(map(distance, written, phonemes)) / sum(map(len, phonemes))
    assert exact == expected["gold_1000"]["exact_match"] == 0.710
    assert round(errors, 5) == expected["gold_1000"]["char_error_rate"]


def test_out_again_bit_by_bit(model: Any, tmp_path: Path) -> None:
    save_pretrained(model, tmp_path / "out")
    first, second = (load_file(folder / "model.safetensors") for folder in (FOLDER / "hf", tmp_path / "out"))
    copies = first.keys() - second.keys()  # of the one table
    assert all(name.endswith(("embed_tokens.weight", "lm_head.weight")) for name in copies)
    assert second.keys() < first.keys() or second.keys() == first.keys()
    assert all(torch.equal(second[name], first[name]) for name in second)
    assert all(torch.equal(first[name], second["model.shared.weight"]) for name in copies)


@torch.no_grad()
def test_transformers_reads_it_and_agrees(model: Any, tmp_path: Path) -> None:
    from transformers import BartForConditionalGeneration

    save_pretrained(model, tmp_path / "out")
    theirs, info = BartForConditionalGeneration.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    ids, mask = spelled(gold()[0][:64])
    targets = torch.cat((torch.full((64, 1), BEGIN), ids[:, 1:7].clamp(min=UNKNOWN)), dim=1)
    read = theirs.eval()(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=targets).logits
    ours = model(ids, targets, mask).logits
    torch.testing.assert_close(ours, read, rtol=0, atol=1e-5 * float(read.abs().max()))
