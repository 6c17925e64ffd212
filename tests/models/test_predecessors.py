"""LSTM, GNMT, ByteNet and ConvS2S: what the encoder-decoder Transformer promises, and what their papers say."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.models.composed import PREDECESSORS, VOCAB_SIZE, build, ids
from triform.generation import generate
from triform.layers.losses import CrossEntropy
from triform.layers.state import StateCache
from triform.models.cost import count_parameters, flops_per_token
from triform.models.recurrent import BothWays

START, END = 2, 9
SOURCE_PADDING = torch.arange(7) < torch.tensor([[7], [4], [1]])
each = pytest.mark.parametrize("name", PREDECESSORS)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def another(tokens: Tensor) -> Tensor:
    return torch.where(tokens == VOCAB_SIZE - 1, 7, tokens + 1)


# --- what every model of two stacks promises -------------------------------------------------------------------------


@each
@torch.no_grad()
def test_the_future_never_changes_the_past(name: str) -> None:
    model, source, a = build(name), ids(2, 6), ids(2, 7, seed=1)
    for place in range(1, 7):
        b = a.clone()
        b[:, place] = another(b[:, place])
        before, after = model(source, a).logits, model(source, b).logits
        assert torch.equal(before[:, :place], after[:, :place])
        assert not torch.allclose(before[:, place:], after[:, place:])


@each
@torch.no_grad()
def test_every_token_of_the_source_counts(name: str) -> None:
    model, source, target = build(name), ids(1, 6), ids(1, 7, seed=1)
    before = model(source, target).logits
    for place in range(6):
        changed = source.clone()
        changed[:, place] = another(changed[:, place])
        assert not torch.allclose(before, model(changed, target).logits)


def padded(rows: list[Tensor], length: int, side: str) -> tuple[Tensor, Tensor]:
    """Rows as one batch, what is beside them any token, and their mask."""
    batch, mask = torch.full((len(rows), length), 5), torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        n = row.shape[1]
        place = slice(length - n, length) if side == "left" else slice(0, n)
        batch[i, place], mask[i, place] = row, True
    return batch, mask


SOURCES = [ids(1, n, seed=n) for n in (9, 5, 1)]
TARGETS = [ids(1, n, seed=n) for n in (4, 7, 3)]


@each
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_row_alone_equals_the_row_in_a_batch(name: str, side: str) -> None:
    """Sources and targets each of their own length, the longest source not beside the longest target."""
    model = build(name)
    sources, source_mask = padded(SOURCES, 11, side)
    targets, target_mask = padded(TARGETS, 8, side)
    together = model(sources, targets, source_mask, target_mask).logits
    assert together.isfinite().all()
    for i, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        close(together[i][target_mask[i]], model(source, target).logits[0])


@each
def test_rows_alone_and_in_a_batch_give_one_gradient(name: str) -> None:
    """Also where a row of the batch is nothing but padding."""
    model = build(name)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        model(source, target).logits.square().sum().backward()
    alone = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    sources, source_mask = padded([*SOURCES, ids(1, 0)], 11, "right")
    targets, target_mask = padded([*TARGETS, ids(1, 0)], 8, "right")
    logits = model(sources, targets, source_mask, target_mask).logits
    assert logits.isfinite().all()
    logits[target_mask].square().sum().backward()
    for key, parameter in model.named_parameters():
        size = max(1.0, float(alone[key].abs().max()))
        torch.testing.assert_close(parameter.grad / size, alone[key] / size, rtol=1e-5, atol=1e-5, msg=key)


@each
@torch.no_grad()
def test_the_cache_changes_no_logit(name: str) -> None:
    """Tokens come in pieces, also beyond what the source unfolds to; rows are chosen and repeated in between."""
    model, source, target = build(name), ids(3, 5), ids(3, 12, seed=1)
    mask = torch.arange(5) < torch.tensor([[5], [2], [4]])
    memory, cache = model.encode(source, mask), model.new_cache(12)
    rows = torch.arange(3)
    begin = 0
    for n, chosen in ((1, [2, 0, 0, 1]), (4, [3, 1]), (2, [1, 0]), (5, [0])):
        part = model.decode(target[rows, begin : begin + n], memory[rows], mask[rows], cache=cache).logits
        whole = model(source[rows], target[rows, : begin + n], mask[rows]).logits
        close(part, whole[:, begin:])
        begin += n
        assert cache.length == begin
        cache.select(torch.tensor(chosen), torch.tensor(chosen))
        rows = rows[chosen]


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 2.0, "top_p": 0.9},
    "beams": {"num_beams": 3},
}


@each
@pytest.mark.parametrize("way", WAYS)
def test_the_cache_changes_no_token(name: str, way: str) -> None:
    model = build(name)
    how = {"max_new_tokens": 12, "start_id": START, "eos_id": END, **WAYS[way]}
    cached, anew = (generate(model, ids(3, 7), SOURCE_PADDING, use_cache=use, **how) for use in (True, False))
    assert torch.equal(cached, anew)
    assert cached.unique().numel() > 3, "nothing but one token was written"


@each
@pytest.mark.parametrize("way", WAYS)
def test_a_row_alone_writes_what_it_writes_in_a_batch(name: str, way: str) -> None:
    model, tokens, how = build(name), ids(3, 7), {"max_new_tokens": 6, "start_id": START, **WAYS[way]}
    together = generate(model, tokens, SOURCE_PADDING, **how)
    for i in range(3):
        if way != "sampling" or SOURCE_PADDING[i].all():  # what is drawn depends on a row and its padding
            alone = generate(model, tokens[i : i + 1], SOURCE_PADDING[i : i + 1], **how)
            assert torch.equal(together[i], alone[0])


@each
def test_overfits_one_batch(name: str) -> None:
    torch.manual_seed(0)
    model = build(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    source, target = ids(4, 6), ids(4, 5, seed=1)
    inputs = torch.cat((torch.full((4, 1), START), target[:, :-1]), dim=1)
    for _ in range(120):
        optimizer.zero_grad()
        loss = model.head(model(source, inputs).hidden, target, CrossEntropy(0.0)) / target.numel()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss < 0.02:
            break
    assert loss < 0.02
    assert torch.equal(generate(model, source, max_new_tokens=5, start_id=START)[:, 1:], target)


@each
def test_initialise_fills_everything_and_only_the_seed_decides(name: str) -> None:
    first, again, other = build(name, seed=1), build(name, seed=1), build(name, seed=2)
    for key, value in first.state_dict().items():
        assert value.isfinite().all(), key
        assert torch.equal(value, again.state_dict()[key]), key
        if value.ndim > 1:
            assert not torch.equal(value, other.state_dict()[key]), key
    assert first.head.weight is first.embedding.table.weight


@each
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = build(name).train()
    model.head(model(ids(4, 7), ids(4, 6, seed=1)).hidden, ids(4, 6, seed=2), CrossEntropy(0.1)).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.ne(0).any(), key


@each
def test_dropout_is_for_training_only(name: str) -> None:
    model, a = build(name, "model.dropout=0.5"), ids(2, 7)
    assert torch.equal(model(a, a).logits, model(a, a).logits)
    model.train()
    assert not torch.equal(model(a, a).logits, model(a, a).logits)


@each
@torch.no_grad()
def test_half_precision_stays_near(name: str) -> None:
    exact, half = build(name), build(name).to(torch.bfloat16)
    source, target, mask = ids(3, 7), ids(3, 6, seed=1), SOURCE_PADDING
    logits = exact(source, target, mask).logits
    assert (half(source, target, mask).logits.float() - logits).norm() / logits.norm() < 0.05
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (exact(source, target, mask).logits.float() - logits).norm() / logits.norm() < 0.05


@each
def test_source_and_target_may_have_a_vocabulary_each(name: str) -> None:
    model = build(name, n_source_tokens=11)
    assert model.source_vocab_size == 11
    assert model.source_embedding.table.weight.shape == (11, 24)
    assert model(torch.tensor([[10, 3]]), torch.tensor([[30, 3, 4]])).logits.shape == (1, 3, VOCAB_SIZE)


@each
def test_flops_equal_what_torch_counts(name: str) -> None:
    """In double precision, where no fused LSTM hides its matrices from torch."""
    from torch.utils.flop_counter import FlopCounterMode

    model, t = build(name).double(), 10
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        _ = model(ids(1, t), ids(1, t)).logits
    assert counter.get_total_flops() == pytest.approx(flops_per_token(model, t) * 2 * t / 3)


@each
def test_more_tokens_than_max_seq_len_are_refused(name: str) -> None:
    model = build(name)
    message = r"17 tokens is longer than max_seq_len=16; set model\.max_seq_len"
    assert model(ids(1, 16), ids(1, 16)).logits.shape[1] == 16
    for source, target in ((ids(1, 17), ids(1, 3)), (ids(1, 3), ids(1, 17))):
        with pytest.raises(ValueError, match=message):
            model(source, target)
    cache, memory = model.new_cache(20), model.encode(ids(1, 3))
    model.decode(ids(1, 16), memory, cache=cache)
    with pytest.raises(ValueError, match=message):
        model.decode(ids(1, 1), memory, cache=cache)


REFUSED = [
    ("lstm", ["model/init=mup"], r"init=MuP says how a Transformer widens"),
    ("bytenet", ["model.d_ff=0"], r"d_ff=0 is less than 1; set model\.d_ff"),
    ("convs2s", ["model.dropout=1.0"], r"dropout=1\.0 is no share; set model\.dropout"),
    ("gnmt", ["model.network.residual_from=2"], r"residual_from=2 is below 3, .* set model\.network\.residual_from"),
    ("bytenet", ["model.network.max_dilation=12"], r"max_dilation=12 is no power of 2"),
    ("bytenet", ["model.network.unfold=0.9"], r"unfold=0\.9 is below 1"),
    ("bytenet", ["model.network.kernel_size=4"], r"kernel_size=4 has no middle; set model\.network\.kernel_size"),
    ("convs2s", ["model.network.kernel_size=2"], r"kernel_size=2 has no middle"),
]


@pytest.mark.parametrize(("name", "overrides", "message"), REFUSED)
def test_refuses_in_one_line(name: str, overrides: list[str], message: str) -> None:
    with pytest.raises(Exception, match=message) as error:
        build(name, *overrides)
    cause: Any = error.value.__cause__ or error.value
    assert isinstance(cause, ValueError)
    assert "\n" not in str(cause)


def test_a_mask_of_targets_is_refused_under_a_cache() -> None:
    model = build("lstm")
    with pytest.raises(ValueError, match=r"decoder_padding_mask is given under a cache"):
        model.decode(
            ids(1, 2),
            model.encode(ids(1, 3)),
            decoder_padding_mask=torch.ones(1, 2, dtype=torch.bool),
            cache=model.new_cache(4),
        )


@pytest.mark.slow
def test_compiled_they_compute_the_same_whatever_the_length() -> None:
    line = (sys.executable, "-m", "tests.models.compiled_predecessors")
    environment = {**os.environ, "JAXTYPING_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == set(PREDECESSORS)
    for name, of in found.items():
        assert of["difference"] < 1e-5, name
        assert of["last"] <= of["first"] + 1, f"{name}: a new length is compiled anew"


# --- LSTM ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_both_ways_is_a_packed_bidirectional_lstm() -> None:
    ours, theirs = BothWays(5, 3), nn.LSTM(5, 3, batch_first=True, bidirectional=True)
    for name, value in theirs.named_parameters():
        of = ours.backwards if name.endswith("_reverse") else ours.forwards
        of.get_parameter(name.removesuffix("_reverse")).copy_(value)
    x, lengths = torch.randn(3, 7, 5), torch.tensor([7, 4, 1])
    mask = torch.arange(7) < lengths[:, None]
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(theirs(packed)[0], batch_first=True)[0]
    close(ours(x, mask)[mask], expected[mask])
    close(ours(x, None), theirs(x)[0])


@torch.no_grad()
def test_the_recurrent_decoder_by_hand() -> None:
    """Bahdanau et al. 2015, appendix A.2.2, token by token, with an LSTM; a maxout of pairs."""
    model, source, target = build("lstm"), ids(1, 5), ids(1, 4, seed=1)
    decoder, x, memory = model.decoder, model.embedding(target)[0], model.encode(source)[0]
    attention = decoder.cross_attention
    cell = nn.LSTM(24 + 40, 20)
    for name, value in cell.named_parameters():
        value.copy_(decoder.layers[0].get_parameter(name.removesuffix("_l0")))
    h = (memory.mean(0) @ decoder.start_proj.weight.T + decoder.start_proj.bias).tanh()[None]
    c = torch.zeros_like(h)
    expected = []
    for t in range(4):
        scores = [
            attention.score_proj.weight[0]
            @ (attention.q_proj.weight @ h[0] + attention.q_proj.bias + attention.k_proj.weight @ annotation).tanh()
            for annotation in memory
        ]
        context = torch.stack(scores).softmax(0) @ memory
        _, (h, c) = cell(torch.cat((x[t], context))[None], (h, c))
        both = decoder.readout(torch.cat((h[0], x[t], context)))
        expected.append(torch.maximum(both[0::2], both[1::2]))
    close(model(source, target).hidden[0], torch.stack(expected))


@torch.no_grad()
def test_gnmt_by_hand() -> None:
    """Wu et al. 2016, section 3: the context of the bottom layer goes to all; from the third layer on, x + f(x)."""
    model, source, target = build("gnmt"), ids(2, 5), ids(2, 4, seed=1)
    encoder, decoder = model.encoder, model.decoder
    x = encoder.layers[0](model.embedding(source), None)
    x = encoder.layers[1](x)[0]
    for layer in encoder.layers[2:]:
        x = x + layer(x)[0]
    close(model.encode(source), x)
    starts = decoder.start_proj(x.mean(1)).tanh().chunk(4, dim=-1)
    h, c, y, contexts = starts[0], torch.zeros_like(starts[0]), [], []
    for token in model.embedding(target).unbind(1):
        context, _ = decoder.cross_attention(h, decoder.cross_attention.k_proj(x), x, None)
        h, c = decoder.layers[0](torch.cat((token, context), dim=-1), (h, c))
        y.append(h)
        contexts.append(context)
    out, context = torch.stack(y, dim=1), torch.stack(contexts, dim=1)
    for i in (1, 2, 3):
        state = starts[i][None].contiguous()
        z = decoder.layers[i](torch.cat((out, context), dim=-1), (state, torch.zeros_like(state)))[0]
        out = out + z if i >= 2 else z
    close(model(source, target).hidden, decoder.readout(out))


def test_parameters_of_an_lstm_by_hand() -> None:
    d, u, v = 24, 20, VOCAB_SIZE
    encoder = 2 * (4 * u * (d + u) + 8 * u)
    attention = (u * u + u) + 2 * u * u + u
    decoder = (2 * u * u + u) + attention + (4 * u * (d + 2 * u + u) + 8 * u) + 2 * d * (u + d + 2 * u) + 2 * d
    assert count_parameters(build("lstm")) == v * d + encoder + decoder


# --- ByteNet ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_bytenet_reads_as_far_as_its_dilations_reach() -> None:
    """Without the source: dilations 1, 2, 4, 1 of width 3 reach 2 * (1 + 2 + 4 + 1) tokens back."""
    model = build("bytenet", "model.network.max_dilation=4", "model.n_layers=4", "model.max_seq_len=32")
    target, memory = ids(1, 20), torch.zeros(1, 20, 24)
    before = model.decode(target, memory).logits
    target[0, 0] = another(target[0, 0])
    changed = (model.decode(target, memory).logits - before).abs().amax(-1)[0] > 0
    assert changed.tolist() == [True] * 17 + [False] * 3


@torch.no_grad()
def test_bytenet_unfolds_to_the_expected_length_of_a_row() -> None:
    model = build("bytenet")
    source = ids(3, 7)
    assert model.encode(source).shape[1] == math.ceil(1.2 * 7)
    memory = model.encode(source, SOURCE_PADDING)
    assert memory.ne(0).any(-1).sum(1).tolist() == [math.ceil(1.2 * n) for n in (7, 4, 1)]


@torch.no_grad()
def test_a_block_of_bytenet_by_hand() -> None:
    """Kalchbrenner et al. 2016, figure 3, left: norm, ReLU, 1 x 1; norm, ReLU, 1 x k; norm, ReLU, 1 x 1."""
    block = build("bytenet").decoder.layers[2]
    assert block.convolution.dilation == 4
    for parameter in block.parameters():
        parameter.copy_(torch.randn_like(parameter))
    x = torch.randn(2, 11, 24)
    y = F.layer_norm(x, (24,), block.down_norm.weight, block.down_norm.bias).relu()
    y = y @ block.down_proj.weight[:, :, 0].T + block.down_proj.bias
    y = F.layer_norm(y, (10,), block.norm.weight, block.norm.bias).relu()
    z = torch.zeros(2, 11, 10) + block.convolution.bias
    for t in range(11):
        for k, back in enumerate((8, 4, 0)):
            if t >= back:
                z[:, t] += y[:, t - back] @ block.convolution.weight[:, :, k].T
    z = F.layer_norm(z, (10,), block.up_norm.weight, block.up_norm.bias).relu()
    torch.testing.assert_close(block(x), x + z @ block.up_proj.weight[:, :, 0].T + block.up_proj.bias)


# --- ConvS2S ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_convs2s_by_hand() -> None:
    """Gehring et al. 2017, section 3, on one row, with torch's own weight normalisation."""
    model = build("convs2s")
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.copy_(torch.rand(parameter.shape, generator=torch.Generator().manual_seed(len(key))) + 0.5)
    source, target, half = ids(1, 6), ids(1, 5, seed=1), 0.5**0.5

    def plain(layer: Any) -> nn.Module:
        """The same by torch: what is before the row are zeros, and what is behind is cut off."""
        of = nn.Conv1d(*layer.weight.shape[1::-1], layer.weight.shape[2])
        made = nn.utils.parametrizations.weight_norm(of)
        made.parametrizations.weight.original0.copy_(layer.gain[:, None, None])
        made.parametrizations.weight.original1.copy_(layer.weight)
        made.bias.copy_(layer.bias)
        return made

    def apply(layer: Any, x: Tensor) -> Tensor:
        before, behind = (layer.reach, 0) if layer.causal else (layer.reach // 2, layer.reach // 2)
        return plain(layer)(F.pad(x.T[None], (before, behind)))[0].T

    def gated(layer: Any, x: Tensor) -> Tensor:
        a, b = apply(layer.convolution, x).chunk(2, dim=-1)
        return a * b.sigmoid()

    encoder, decoder = model.encoder, model.decoder
    e = model.embedding(source)[0] + encoder.positions.weight[:6]
    x = apply(encoder.up_proj, e)
    for layer in encoder.layers:
        x = (gated(layer, x) + x) * half
    z = apply(encoder.down_proj, x)
    g = model.embedding(target)[0] + decoder.positions.weight[:5]
    h = apply(decoder.up_proj, g)
    for layer in decoder.layers:
        y = gated(layer["convolution"], h)
        d = (apply(layer["cross_attention"].q_proj, y) + g) * half
        context = (d @ z.T).softmax(-1) @ ((z + e) * half) * 6 * (1 / 6) ** 0.5
        y = (apply(layer["cross_attention"].out_proj, context) + y) * half
        h = (y + h) * half
    close(model(source, target).hidden[0], apply(decoder.down_proj, h))


def test_convs2s_scales_the_gradient_of_its_encoder_but_not_of_embeddings() -> None:
    """As fairseq: the keys' gradient is 1 / (2 * 3 attentions) of what it would be."""
    model = build("convs2s")
    source, target = ids(1, 6), ids(1, 5, seed=1)
    model(source, target).logits.square().sum().backward()
    scaled = {name: p.grad.clone() for name, p in model.encoder.named_parameters()}
    model.zero_grad()
    model.encoder.n_attentions = 0.5
    model(source, target).logits.square().sum().backward()
    close(scaled["layers.0.convolution.weight"] * 6, model.encoder.layers[0].convolution.weight.grad)
    positions = model.encoder.positions.weight.grad
    assert not torch.allclose(scaled["positions.weight"] * 6, positions, rtol=1e-2)


@torch.no_grad()
def test_convs2s_keeps_variance_at_first() -> None:
    """Gehring et al. 2017, section 3.5: the hidden states of many layers are about as large as those of one."""
    model = build("convs2s", "model.n_layers=12", "model.d_ff=64", "model.d_model=48")
    x = 0.1 * torch.randn(64, 16, 48)
    seen: list[float] = []
    for layer in model.encoder.layers:
        layer.register_forward_pre_hook(lambda module, inputs: seen.append(float(inputs[0].var())))
    model.encoder(x, None)
    assert len(seen) == 12
    assert 0.5 < seen[-1] / seen[0] < 2


# --- what they attend to ---------------------------------------------------------------------------------------------


@torch.no_grad()
def test_alignment_of_those_that_attend() -> None:
    source, target = ids(2, 6), ids(2, 4, seed=1)
    for name in ("lstm", "gnmt", "convs2s"):
        weights = build(name).alignment(source, target)
        assert weights.shape == (2, 4, 6)
        close(weights.sum(-1), torch.ones(2, 4))
        assert weights.std(dim=1).gt(0).any(), "every token attends alike"
    assert build("bytenet").alignment(source, target) is None


def test_a_state_cache_refuses_more_than_it_holds() -> None:
    cache = StateCache(2, 3)
    cache.advance(3)
    with pytest.raises(ValueError, match=r"4 tokens are more than max_len=3; make one for more: new_cache\(4\)"):
        cache.advance(1)
