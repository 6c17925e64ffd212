import pytest
import torch
from torch import Tensor, nn

from tests.models.composed import VOCAB_SIZE, build, ids
from triform.generation import generate

PARTS = [
    ("model/position=sinusoidal",),
    ("model/position=learned",),
    ("model/position=rotary",),
    ("model/position=none",),
    ("model/attention=grouped_query",),
    ("model/attention=sliding_window", "model.attention.window=3"),
    ("model/attention=sliding_window", "model.attention.window=1"),
    ("model.attention.kernel=eager",),
]
SOURCE_PADDING = torch.arange(7) < torch.tensor([[7], [4], [1]])
START = 2


def tiny(family: str, *overrides: str) -> nn.Module:
    """With Xavier, so that the tokens it writes differ from step to step."""
    return build(family, "model/init=xavier", *overrides)


@pytest.mark.parametrize("parts", PARTS)
@torch.no_grad()
def test_decoder_with_a_cache_equals_without(parts: tuple[str, ...]) -> None:
    """Token by token, by logits: equal choices alone could hide a difference."""
    model, tokens = tiny("decoder", *parts), ids(3, 12)
    padding = SOURCE_PADDING.flip(1)
    padding = torch.cat((padding, torch.ones(3, 5, dtype=torch.bool)), dim=1)
    cache = model.new_cache(12)
    model(tokens[:, :7], padding[:, :7], cache=cache)
    for i in range(7, 12):
        cached = model(tokens[:, i : i + 1], padding[:, : i + 1], cache=cache).logits[:, -1]
        whole = model(tokens[:, : i + 1], padding[:, : i + 1]).logits[:, -1]
        torch.testing.assert_close(cached, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", PARTS)
@torch.no_grad()
def test_encoder_decoder_with_a_cache_equals_without(parts: tuple[str, ...]) -> None:
    model, source, target = tiny("encoder_decoder", *parts), ids(3, 7), ids(3, 6, seed=1)
    memory, cache = model.encode(source, SOURCE_PADDING), model.new_cache(6)
    whole = model(source, target, SOURCE_PADDING).logits
    for i in range(6):
        cached = model.decode(target[:, i : i + 1], memory, SOURCE_PADDING, cache=cache).logits
        torch.testing.assert_close(cached[:, 0], whole[:, i], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_prefix_may_come_through_the_cache() -> None:
    model, tokens, prefix = tiny("decoder"), ids(2, 9), torch.tensor([5, 3])
    whole, cache = model(tokens, prefix_length=prefix).logits, model.new_cache(9)
    pieces = [model(part, prefix_length=prefix, cache=cache).logits for part in tokens.split([5, 1, 3], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("do_sample", [False, True])
def test_the_cache_changes_no_token(parts: tuple[str, ...], do_sample: bool) -> None:
    decoder, both = tiny("decoder", *parts), tiny("encoder_decoder", *parts)
    for model, padding in ((decoder, SOURCE_PADDING.flip(1)), (both, SOURCE_PADDING)):
        first, second = (
            generate(
                model,
                ids(3, 7),
                padding,
                max_new_tokens=9,
                do_sample=do_sample,
                start_id=START,
                use_cache=use_cache,
            )
            for use_cache in (True, False)
        )
        assert torch.equal(first, second)


@pytest.mark.parametrize("parts", PARTS)
def test_a_row_alone_writes_what_it_writes_in_a_batch(parts: tuple[str, ...]) -> None:
    decoder, both, tokens = tiny("decoder", *parts), tiny("encoder_decoder", *parts), ids(3, 7)
    left = SOURCE_PADDING.flip(1)
    prompted = generate(decoder, tokens, left, max_new_tokens=6)
    translated = generate(both, tokens, SOURCE_PADDING, max_new_tokens=6, start_id=START)
    for i in range(3):
        prompt, source = tokens[i][left[i]][None], tokens[i][SOURCE_PADDING[i]][None]
        assert torch.equal(generate(decoder, prompt, max_new_tokens=6)[0, -6:], prompted[i, -6:])
        assert torch.equal(generate(both, source, max_new_tokens=6, start_id=START)[0], translated[i])


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
        ("decoder", {"num_beams": 4}, "num_beams=4, but there is no beam search; set num_beams=1"),
        ("decoder", {"max_new_tokens": 0}, "max_new_tokens=0 asks for nothing"),
        ("decoder", {"do_sample": True, "temperature": -1.0}, "temperature=-1.0 is negative"),
        ("decoder", {"do_sample": True, "top_k": 0}, "top_k=0 leaves no token"),
        ("decoder", {"do_sample": True, "top_p": 0.0}, "top_p=0.0 is no share"),
        ("decoder", {"padding_mask": SOURCE_PADDING[:2]}, "ends with padding; pad prompts on the left"),
        ("decoder", {"input_ids": ids(2, 17)}, r"17 tokens is longer than model\.max_seq_len=16"),
    ],
)
def test_refuses_in_one_line(family: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        generate(tiny(family), **{"input_ids": ids(2, 7), "max_new_tokens": 5} | arguments)
    assert "\n" not in str(error.value)
