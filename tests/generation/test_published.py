"""The same tokens as `generate` of `transformers`, with the same weights."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.generation.published import END, PAD, START, VOCAB_SIZE, decoders, encoder_decoders
from triform.generation import generate

PADDING = torch.arange(7) < torch.tensor([[7], [4], [1]])
FORMS = {"decoder": decoders, "encoder_decoder": encoder_decoders}

forms = pytest.mark.parametrize("form", FORMS)
ends = pytest.mark.parametrize("end", [None, END, 11], ids="eos {}".format)


@cache
def models(form: str) -> tuple[nn.Module, Any]:
    return FORMS[form]()


def both(form: str, end: int | None, **how: Any) -> tuple[Tensor, Tensor]:
    """What ours and theirs make of a padded batch."""
    ours, theirs = models(form)
    padding = (PADDING.flip(1) if form == "decoder" else PADDING).repeat(3, 1)
    tokens = torch.randint(4, VOCAB_SIZE, (9, 7), generator=torch.Generator().manual_seed(0))
    tokens = tokens.masked_fill(~padding, PAD)
    written = generate(
        ours, tokens, padding, max_new_tokens=14, eos_id=end, pad_id=PAD,
        start_id=START if form == "encoder_decoder" else None, **how,
    )  # fmt: skip
    theirs.generation_config.eos_token_id = end
    expected = theirs.generate(tokens, attention_mask=padding.long(), max_new_tokens=14, do_sample=False, **how)
    return written, expected


@ends
@forms
def test_greedy(form: str, end: int | None) -> None:
    assert torch.equal(*both(form, end))


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("num_beams", [2, 4])
@ends
@forms
def test_beams(form: str, end: int | None, num_beams: int, length_penalty: float) -> None:
    assert torch.equal(*both(form, end, num_beams=num_beams, length_penalty=length_penalty))


@pytest.mark.parametrize("early_stopping", [True, "never"])
@forms
def test_when_a_search_stops(form: str, early_stopping: bool | str) -> None:
    for length_penalty in (-1.0, 0.6, 2.0):
        for end in (END, 11):
            how = {"length_penalty": length_penalty, "early_stopping": early_stopping}
            assert torch.equal(*both(form, end, num_beams=3, **how))


@forms
def test_some_beams_end_and_some_do_not(form: str) -> None:
    """In the cases above, so that they say something."""
    ended = [(both(form, end, num_beams=2)[0] == end).any(1) for end in (END, 11)]
    assert torch.cat(ended).unique().tolist() == [False, True]


@pytest.mark.parametrize("num_beams", [1, 3])
@forms
def test_repetition_penalty(form: str, num_beams: int) -> None:
    ours, _ = models(form)
    for penalty in (1.5, 0.7):
        written, expected = both(form, None, num_beams=num_beams, repetition_penalty=penalty)
        rows = slice(0, None, 3) if form == "decoder" else slice(None)  # theirs penalises the padding of a prompt
        assert torch.equal(written[rows], expected[rows])
    assert not torch.equal(written, both(form, None, num_beams=num_beams)[0])
    assert not ours.training
