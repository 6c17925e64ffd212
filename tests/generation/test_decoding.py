from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.composed import PARTS as EVERY_PART
from tests.models.composed import VOCAB_SIZE, build, chosen, ids
from triform.generation import generate
from triform.generation.decoding import _checked

PARTS = [chosen(group, name) for group, name in EVERY_PART if group in ("attention", "position")]
PARTS += [("model/attention=sliding_window", "model.attention.window=1"), ("model.attention.kernel=eager",)]
SOURCE_PADDING = torch.arange(7) < torch.tensor([[7], [4], [1]])
START = 2


def tiny(family: str, *overrides: str) -> nn.Module:
    """With Xavier, so that the tokens it writes differ from step to step."""
    return build(family, "model/init=xavier", *overrides)


same = cache(tiny)  # not to be changed


@torch.no_grad()
def test_a_prefix_may_come_through_the_cache() -> None:
    model, tokens, prefix = same("decoder"), ids(2, 9), torch.tensor([5, 3])
    whole, cache = model(tokens, prefix_length=prefix).logits, model.new_cache(9)
    pieces = [model(part, prefix_length=prefix, cache=cache).logits for part in tokens.split([5, 1, 3], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-5, atol=1e-5)


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 2.0, "top_p": 0.9},
    "beams": {"num_beams": 3},
    "penalised": {"repetition_penalty": 1.7},
}
ways = pytest.mark.parametrize("way", WAYS)


# One part for each way in which a row knows its place: that logits agree is tested for all parts in every family.
QUICK = (chosen("position", "learned"), chosen("position", "alibi"), chosen("attention", "sliding_window"))


def each_way(for_parts: str) -> list[Any]:
    """Every way with the usual parts, and one with every part."""
    slow = {parts: () if parts in QUICK else pytest.mark.slow for parts in PARTS}
    return [
        *((way, ()) for way in WAYS),
        *(pytest.param(for_parts, parts, marks=marks) for parts, marks in slow.items()),
    ]


@pytest.mark.parametrize(("way", "parts"), each_way("beams"))
def test_the_cache_changes_no_token(way: str, parts: tuple[str, ...]) -> None:
    """Though rows end, so that the others move in it."""
    decoder, both = same("decoder", *parts), same("encoder_decoder", *parts)
    for model, padding in ((decoder, SOURCE_PADDING.flip(1)), (both, SOURCE_PADDING)):
        first, second = (
            generate(
                model, ids(3, 7), padding, max_new_tokens=7, start_id=START, use_cache=use_cache, eos_id=9, **WAYS[way]
            )
            for use_cache in (True, False)
        )
        assert torch.equal(first, second)


@pytest.mark.parametrize(("way", "parts"), each_way("greedy"))
def test_a_row_alone_writes_what_it_writes_in_a_batch(way: str, parts: tuple[str, ...]) -> None:
    decoder, both, tokens = same("decoder", *parts), same("encoder_decoder", *parts), ids(3, 7)
    left, how = SOURCE_PADDING.flip(1), {"max_new_tokens": 4, **WAYS[way]}
    prompted = generate(decoder, tokens, left, **how)
    translated = generate(both, tokens, SOURCE_PADDING, start_id=START, **how)
    for i in range(3):
        prompt, source = tokens[i][left[i]][None], tokens[i][SOURCE_PADDING[i]][None]
        assert torch.equal(generate(decoder, prompt, **how)[0, -4:], prompted[i, -4:])
        assert torch.equal(generate(both, source, start_id=START, **how)[0], translated[i])


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
@ways
def test_rows_that_end_leave_the_batch_and_change_nothing(way: str, family: str) -> None:
    """Each end that occurs among those tokens in turn: no row is other than without the end, up to its own."""
    model, tokens, n_rows = tiny(family), ids(5, 4), []
    stack = model.stack if family == "decoder" else model.decoder
    how = {"max_new_tokens": 6, "start_id": START, "pad_id": 1, **WAYS[way]}
    begin = 4 if family == "decoder" else 1
    endless = generate(model, tokens, **how)[:, begin:].tolist()
    handle = stack.register_forward_pre_hook(lambda module, arguments: n_rows.append(len(arguments[0])))
    for end in sorted({token for row in endless for token in row})[::3]:
        n_rows.clear()
        written = generate(model, tokens, eos_id=end, **how)[:, begin:].tolist()
        if way != "beams":  # of which the end changes what is best
            lengths = [row.index(end) + 1 if end in row else 6 for row in endless]
            width = max(lengths)
            assert written == [row[:n] + [1] * (width - n) for row, n in zip(endless, lengths, strict=True)]
            assert n_rows == [sum(n > step for n in lengths) for step in range(width)]
        else:
            assert all(later <= before for before, later in pairwise(n_rows[1:]))
            assert all(len(set(row[row.index(end) + 1 :])) <= 1 for row in written if end in row)
    handle.remove()


def test_greedy_follows_the_likeliest_token() -> None:
    model, prompt = tiny("decoder"), ids(2, 4)
    out = generate(model, prompt, max_new_tokens=5)
    assert out.shape == (2, 9)
    assert torch.equal(out[:, :4], prompt)
    assert torch.equal(model(out[:, :-1]).logits.argmax(-1)[:, 3:], out[:, 4:])


def test_temperature_zero_is_greedy() -> None:
    model, prompt = tiny("decoder"), ids(2, 4)
    greedy = generate(model, prompt, max_new_tokens=5)
    assert torch.equal(generate(model, prompt, max_new_tokens=5, do_sample=True, temperature=0.0), greedy)
    assert torch.equal(generate(model, prompt, max_new_tokens=5, do_sample=True, top_k=1), greedy)


def test_the_seed_decides_what_is_drawn() -> None:
    model, prompt = tiny("decoder"), ids(4, 4)

    def drawn(seed: int) -> Tensor:
        return generate(model, prompt, max_new_tokens=9, do_sample=True, temperature=3.0, seed=seed)

    state = torch.random.get_rng_state()
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_equal_prompts_are_drawn_apart_and_a_row_by_itself() -> None:
    model, prompt = tiny("decoder"), ids(2, 4)[[0, 1, 0, 0]]
    how = {"max_new_tokens": 9, "do_sample": True, "temperature": 3.0}
    together = generate(model, prompt, **how)
    assert len(together.unique(dim=0)) == 4
    assert torch.equal(generate(model, prompt[[1, 0, 0]], **how), together[[1, 0, 2]])


class Scripted(nn.Module):
    """A head whose likeliest token is the one after the last it was given, by a table."""

    def __init__(self, following: dict[int, int], embedding: nn.Embedding) -> None:
        super().__init__()
        self.following, self.embedding = following, embedding

    def forward(self, hidden: Tensor) -> Tensor:
        now = torch.cdist(hidden, self.embedding.weight).argmin(-1)
        then = torch.tensor([self.following.get(int(token), 9) for token in now])
        return nn.functional.one_hot(then, VOCAB_SIZE).float()


def scripted(following: dict[int, int]) -> nn.Module:
    """A decoder whose hidden state is the embedding of the token itself."""
    model = build("decoder", "model/position=none")
    for layer in model.stack.layers:
        nn.init.zeros_(layer.attention.out_proj.weight)
        nn.init.zeros_(layer.feed_forward.down_proj.weight)
    model.stack.final_norm = nn.Identity()
    model.head = Scripted(following, model.embedding.table)
    return model


def test_rows_that_ended_are_filled_with_padding() -> None:
    model = scripted({10: 11, 11: 12, 12: 3, 20: 3})
    out = generate(model, torch.tensor([[10], [20]]), max_new_tokens=8, eos_id=3, pad_id=0)
    assert out.tolist() == [[10, 11, 12, 3], [20, 3, 0, 0]]


def test_without_eos_it_goes_on() -> None:
    model = scripted({10: 11, 11: 3, 3: 10})
    assert generate(model, torch.tensor([[10]]), max_new_tokens=5).tolist() == [[10, 11, 3, 10, 11, 3]]


def test_stops_when_the_model_can_read_no_more() -> None:
    decoder, both = tiny("decoder"), tiny("encoder_decoder", "model.decoder.max_seq_len=9")
    for use_cache in (True, False):
        assert generate(decoder, ids(1, 4), max_new_tokens=99, use_cache=use_cache).shape == (1, 17)
        assert generate(decoder, ids(1, 16), max_new_tokens=99, use_cache=use_cache).shape == (1, 17)
        out = generate(both, ids(1, 4), max_new_tokens=99, start_id=START, use_cache=use_cache)
        assert out.shape == (1, 10)
        assert out[0, 0] == START


def test_rows_that_pad_the_table_are_never_written() -> None:
    model = scripted({10: 30, 30: 31})
    assert generate(model, torch.tensor([[10]]), max_new_tokens=1).tolist() == [[10, 30]]
    out = generate(model, torch.tensor([[10]]), max_new_tokens=1, vocab_size=20)
    assert out[0, 1] < 20


def test_leaves_the_mode_of_the_model_as_it_was() -> None:
    model = tiny("decoder", "model.dropout=0.5").train()
    first = generate(model, ids(1, 4), max_new_tokens=5)
    assert model.training
    assert torch.equal(first, generate(model, ids(1, 4), max_new_tokens=5))
    assert not first.requires_grad


@pytest.mark.parametrize(
    ("family", "arguments", "message"),
    [
        ("encoder", {}, "Encoder writes no text; set model=decoder or model=encoder_decoder"),
        ("encoder_decoder", {}, "needs start_id"),
        ("decoder", {"max_new_tokens": 0}, "max_new_tokens=0 asks for nothing"),
        ("decoder", {"do_sample": True, "temperature": -1.0}, "temperature=-1.0 is negative"),
        ("decoder", {"do_sample": True, "top_k": 0}, "top_k=0 leaves no token"),
        ("decoder", {"do_sample": True, "top_p": 0.0}, "top_p=0.0 is no share"),
        ("decoder", {"padding_mask": SOURCE_PADDING[:2]}, "ends with padding; pad prompts on the left"),
        (
            "decoder",
            {"input_ids": ids(2, 0)},
            "input_ids are 2 rows of 0 tokens; give at least one prompt of one token",
        ),
        ("decoder", {"input_ids": ids(0, 7)}, "input_ids are 0 rows of 7 tokens"),
        ("decoder", {"input_ids": ids(2, 7) + 30}, r"input_ids: token \d+ is not one of model.vocab_size=37"),
        ("decoder", {"input_ids": ids(2, 7) - 30}, r"input_ids: token -\d+ is not one of"),
        ("decoder", {"vocab_size": 0}, "vocab_size=0 leaves no token; set it to that of the tokenizer"),
        ("decoder", {"eos_id": 37}, "eos_id: token 37 is not one of"),
        ("encoder_decoder", {"start_id": -1}, "start_id: token -1 is not one of"),
        ("decoder", {"repetition_penalty": 0.0}, r"repetition_penalty=0\.0 is not positive"),
        ("decoder", {"do_sample": True, "min_p": 2.0}, r"min_p=2\.0 is no share"),
        ("decoder", {"input_ids": ids(2, 17)}, r"17 tokens is longer than model\.max_seq_len=16"),
    ],
)
def test_refuses_in_one_line(family: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        generate(tiny(family), **{"input_ids": ids(2, 7), "max_new_tokens": 5} | arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mask", [SOURCE_PADDING, torch.ones(2, 7)])
def test_refuses_a_mask_that_does_not_fit(mask: Tensor) -> None:
    """Where no annotation is checked."""
    with pytest.raises(
        ValueError, match=r"padding_mask is torch\.\w+ \[\d, 7\], but input_ids are \[2, 7\]; give a Bool"
    ):
        _checked(tiny("decoder"), ids(2, 7), mask, {})


@pytest.mark.parametrize(
    ("wrong", "others", "message"),
    [
        (ids(7), {}, r"input_ids are torch\.int64 \[7\]; give whole numbers, a row for each prompt, such as torch"),
        (torch.rand(2, 7), {}, r"input_ids are torch\.float32 \[2, 7\]; give whole numbers"),
        (ids(2, 7), {"eos_id": [1, 2]}, r"eos_id=\[1, 2\] is no token; give the number of one"),
    ],
)
def test_refuses_what_is_no_batch_of_tokens(wrong: Tensor, others: dict[str, Any], message: str) -> None:
    """Where no annotation is checked."""
    with pytest.raises(ValueError, match=message):
        _checked(tiny("decoder"), wrong, None, others)


@pytest.mark.parametrize("name", ["max_new_tokens", "num_beams", "top_k"])
def test_counts_are_whole(name: str) -> None:
    arguments: dict[str, Any] = {"max_new_tokens": 5, name: True}
    with pytest.raises(ValueError, match=rf"generate: {name}=True is no whole number; set it to one"):
        generate(tiny("decoder"), ids(2, 7), **arguments)


@pytest.mark.parametrize("head", ["classification", "regression", "hidden_states"])
def test_refuses_a_model_that_does_not_write(head: str) -> None:
    model = tiny("decoder", f"model/head={head}")
    with pytest.raises(ValueError, match=rf"generate: {type(model.head).__name__} gives no logits of tokens; take a"):
        generate(model, ids(2, 7), max_new_tokens=5)


def test_leaves_every_module_in_its_mode() -> None:
    model = tiny("decoder").train()
    model.stack.eval()
    before = [module.training for module in model.modules()]
    generate(model, ids(2, 7), max_new_tokens=2)
    assert [module.training for module in model.modules()] == before
    assert set(before) == {True, False}


def test_weights_that_are_no_numbers_give_tokens_all_the_same() -> None:
    """As greedily: such a model is looked at while it is trained, and must not end the run."""
    model = tiny("decoder")
    torch.nn.init.constant_(model.embedding.table.weight, float("nan"))
    for drawn in (True, False):
        assert generate(model, ids(2, 7), max_new_tokens=2, do_sample=drawn).max() < VOCAB_SIZE


def test_what_is_written_may_be_used_in_training() -> None:
    """It is no tensor of inference mode."""
    out = generate(tiny("decoder"), ids(1, 4), max_new_tokens=2)
    assert not out.is_inference()
