"""Every part in every family: padded, packed, causal, cached. What holds for one choice holds for all."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.composed import FAMILIES, PARTS, build, chosen, ids, read
from triform.generation import generate

# Forms of a part that are values of its keys.
FORMS = {
    "n_kv_heads": ("model.n_kv_heads=2",),
    "head_dim": ("model.head_dim=10",),
    "biases": ("model.attention.bias=true", "model.attention.out_bias=false"),
    "score scale": ("model.attention.scale=1.0",),
    "eager": ("model.attention.kernel=eager",),
    "capped sinks": ("model/attention=softcap", "model.attention.sinks=true"),
    "windowed sinks": ("model/attention=sinks", "model.attention.window=3", "model.n_kv_heads=2"),
    "window of one": ("model.attention.window=1",),
    "layer-normed queries": ("model/attention=qk_norm", "model/norm@model.attention.qk_norm=layer"),
    "two rotary bases": (
        "model/attention=alternate",
        "model/position=rotary",
        "model.attention.local.window=3",
        "model.attention.local_theta=100.0",
        "model.attention.every=2",
        "model.attention.first=1",
    ),
    "alternate without positions": (
        "model/attention=alternate_nope",
        "model/position=alibi",
        "model.attention.every=2",
        "model.attention.first=1",
    ),
    "switch": ("model/feed_forward=mixture", "model.feed_forward.top_k=1", "model.feed_forward.normalised=false"),
    "mixture of plain experts": ("model/feed_forward=mixture", "model/feed_forward@model.feed_forward.expert=gelu"),
    "embedding norm": ("model/norm@model.embedding_norm=layer",),
    "token types": ("model.n_token_types=2",),
    "scaled and capped head": ("model.head.scaled=true", "model.head.softcap=5.0"),
    "parallel mixture": ("model/placement=parallel", "model/feed_forward=mixture_shared"),
}  # fmt: skip
EVERY = {f"{group}={name}": chosen(group, name) for group, name in PARTS} | FORMS
SOURCE_PADDING = torch.arange(7) < torch.tensor([[7], [4], [1]])

every = pytest.mark.parametrize("parts", EVERY)


@cache
def model_of(family: str, parts: str) -> Any:
    """With noise on every parameter, so that gains, biases and sinks differ."""
    model = build(family, *EVERY[parts])
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
            parameter += 0.2 * noise if parameter.ndim == 1 else 0.05 * noise
    return model


def close(a: Tensor, b: Tensor) -> None:
    largest = max(1.0, float(b.abs().max()))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * largest)


@every
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_row_alone_equals_the_row_in_a_padded_batch(family: str, parts: str) -> None:
    model, rows = model_of(family, parts), [ids(1, 7, seed=1), ids(1, 4, seed=2), ids(1, 1, seed=3)]
    for side in ("left", "right"):
        batch, padding = torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 7, dtype=torch.bool)
        for i, row in enumerate(rows):
            n = row.shape[1]
            place = slice(7 - n, 7) if side == "left" else slice(0, n)
            batch[i, place], padding[i, place] = row, True
        together = read(model, batch, padding_mask=padding).logits
        assert together.isfinite().all()
        for i, row in enumerate(rows):
            close(together[i][padding[i]], read(model, row).logits[0])


@every
@pytest.mark.parametrize("family", ["encoder", "decoder"])
@torch.no_grad()
def test_documents_of_a_packed_row_do_not_see_each_other(family: str, parts: str) -> None:
    model, a, b = model_of(family, parts), ids(1, 4, seed=1), ids(1, 3, seed=2)
    packed = model(torch.cat((a, b), dim=1), document_ids=torch.tensor([[0] * 4 + [1] * 3])).logits
    close(packed[:, :4], model(a).logits)
    close(packed[:, 4:], model(b).logits)


@every
@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
@torch.no_grad()
def test_the_future_never_changes_the_past(family: str, parts: str) -> None:
    model, a = model_of(family, parts), ids(2, 7)
    b = a.clone()
    b[:, 5] += 1
    before, after = (model(a, x).logits if family == "encoder_decoder" else model(x).logits for x in (a, b))
    close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@every
@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
@torch.no_grad()
def test_with_a_cache_equals_without(family: str, parts: str) -> None:
    """Token by token and in larger pieces."""
    model, tokens, source = model_of(family, parts), ids(3, 10), ids(3, 7, seed=1)
    padding = torch.cat((SOURCE_PADDING.flip(1), torch.ones(3, 3, dtype=torch.bool)), dim=1)
    if family == "decoder":
        whole, read = model(tokens, padding).logits, model
    else:
        whole = model(source, tokens, SOURCE_PADDING, padding).logits
        memory = model.encode(source, SOURCE_PADDING)
        read = lambda new, real, cache: model.decode(new, memory, SOURCE_PADDING, real, cache)  # noqa: E731
    for sizes in ([7, 1, 1, 1], [3, 4, 1, 2], [10]):
        kept, pieces = model.new_cache(10), []
        for piece in tokens.split(sizes, dim=1):
            pieces += [read(piece, padding[:, : kept.length + piece.shape[1]], cache=kept).logits]
        close(torch.cat(pieces, dim=1)[padding], whole[padding])


@pytest.mark.parametrize("parts", FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_form_learns(family: str, parts: str) -> None:
    from tests.models.test_conf import step

    step(build(family, *FORMS[parts]))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_rows_that_pad_the_table_are_never_produced(family: str) -> None:
    """Though their vectors are the longest: by the head, so in a loss, a measure and a sample alike."""
    model = build(family, vocab_size=64, n_tokens=37)
    model.embedding.table.weight[37:] = 100.0
    assert model.embedding.table.weight.shape == (64, 24)
    assert read(model, ids(2, 7)).logits.shape == (2, 7, 37)
    if family != "encoder":
        out = generate(model, ids(2, 7), max_new_tokens=5, start_id=2, do_sample=True, temperature=5.0)
        assert out.max() < 37


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_types_of_tokens(family: str) -> None:
    model: nn.Module = build(family, "model.n_token_types=2")
    tokens, types = ids(2, 7), (torch.arange(7) > 3).long().expand(2, 7)
    same, typed = read(model, tokens, token_type_ids=torch.zeros_like(types)), read(model, tokens, token_type_ids=types)
    close(read(model, tokens).logits, same.logits)
    assert not torch.allclose(typed.logits, same.logits)
    with pytest.raises(ValueError, match=r"token_type_ids are given, but model\.n_token_types=0"):
        read(build(family), tokens, token_type_ids=types)
