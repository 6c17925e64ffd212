"""A trained LLaMA of 260,032 parameters, with grouped queries and a tied table: it tells the story that it should."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.interop.parity import check_export, close
from triform import generate
from triform.data.tokenizers import Tokenizer
from triform.run.pretrained import from_pretrained, save_pretrained

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
pytestmark = pytest.mark.skipif(not STORIES.is_dir(), reason=f"the weights are not there: {STORIES}")


@pytest.fixture(scope="module")
def read() -> tuple[Any, Tokenizer]:
    model, tokenizer = from_pretrained(STORIES / "hf")
    assert tokenizer is not None
    return model, tokenizer


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    values: dict[str, Any] = json.loads((STORIES / "expected.json").read_text(encoding="utf-8"))
    return values


def mean_nll(model: nn.Module, ids: Tensor) -> float:
    """Nats per token of those after the first."""
    return float(torch.nn.functional.cross_entropy(model(ids[None, :-1]).logits[0], ids[1:]))


def test_it_has_the_published_sizes(read: tuple[Any, Tokenizer]) -> None:
    model, tokenizer = read
    assert sum(value.numel() for value in model.parameters()) == 260_032
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (512, 1, 2)


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_story_that_upstream_prints(use_cache: bool, read: tuple[Any, Tokenizer], expected: dict[str, Any]) -> None:
    model, tokenizer = read
    start = torch.tensor([[tokenizer.bos_id]])
    written = generate(model, start, max_new_tokens=256, eos_id=tokenizer.eos_id, use_cache=use_cache)
    assert written[0].tolist() == expected["greedy_ids"]
    assert tokenizer.decode(written[0].tolist()).strip() == expected["greedy_text"]


@torch.no_grad()
def test_likelihood_of_stories(read: tuple[Any, Tokenizer], expected: dict[str, Any]) -> None:
    model, tokenizer = read
    assert mean_nll(model, torch.tensor(expected["greedy_ids"])) == pytest.approx(expected["greedy_mean_nll"], abs=1e-5)
    story = torch.tensor([tokenizer.bos_id, *tokenizer.encode(expected["story"]["text"])])
    assert len(story) == expected["story"]["n_ids"]
    assert mean_nll(model, story) == pytest.approx(expected["story"]["mean_nll"], abs=1e-5)


@torch.no_grad()
def test_what_comes_next(read: tuple[Any, Tokenizer], expected: dict[str, Any]) -> None:
    model, tokenizer = read
    for probe in expected["probes"]:
        assert [tokenizer.bos_id, *tokenizer.encode(probe["text"])] == probe["input_ids"]
        assert tokenizer.decode(probe["input_ids"]).strip() == probe["decoded"]
        logits, ids = model(torch.tensor([probe["input_ids"]])).logits[0, -1].topk(5)
        assert ids.tolist() == probe["last_top5_ids"]
        assert logits.tolist() == pytest.approx(probe["last_top5_logits"], abs=1e-4)


@torch.no_grad()
def test_out_again(read: tuple[Any, Tokenizer], expected: dict[str, Any], tmp_path: Path) -> None:
    """Weights and tokenizer, as transformers reads them."""
    model, tokenizer = read
    ids = torch.tensor([expected["greedy_ids"]])
    config = check_export(model, LlamaForCausalLM, tmp_path / "bare", ids)
    assert config["architectures"] == ["LlamaForCausalLM"]
    save_pretrained(model, tmp_path / "whole", tokenizer)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "whole").eval()
    original = LlamaForCausalLM.from_pretrained(STORIES / "hf").eval()
    close(theirs(ids).logits, original(ids).logits)
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (1, 2)
    words = expected["story"]["text"]
    read_by_them = AutoTokenizer.from_pretrained(tmp_path / "whole")(words)["input_ids"]
    assert read_by_them == AutoTokenizer.from_pretrained(STORIES / "hf")(words)["input_ids"]
    assert read_by_them == [tokenizer.bos_id, *tokenizer.encode(words)]
