from functools import partial
from typing import Any

import pytest
import torch
from hydra.utils import instantiate

from tests.models.composed import FAMILIES, build, settings
from triform.layers.embedding import TokenEmbedding
from triform.layers.masks import AttentionMask
from triform.models.cost import count_parameters, flops_per_token
from triform.models.heads import ClassificationHead, Transform

D, F, V = 24, 40, 37
DENSE = partial(Transform, activation=torch.nn.Tanh, norm=None, bias=True)


def on_meta(family: str, *overrides: str) -> Any:
    with torch.device("meta"):
        return instantiate(settings(family, *overrides), _convert_="all")(vocab_size=V)


def test_parameters_by_hand() -> None:
    attention, norm = 4 * D * D, 2 * D
    feed_forward = 2 * D * F + F + D
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert count_parameters(on_meta("encoder_decoder")) == V * D + 2 * encoder + 2 * decoder
    assert count_parameters(on_meta("decoder")) == V * D + 2 * (attention + 3 * D * F + 2 * D) + D
    assert count_parameters(on_meta("decoder", "model.head.tied=false")) == count_parameters(on_meta("decoder")) + V * D


def test_vaswani_base_has_the_published_count() -> None:
    base = [
        "model.d_model=512",
        "model.n_layers=6",
        "model.n_heads=8",
        "model.d_ff=2048",
    ]
    with torch.device("meta"):
        model = instantiate(settings("encoder_decoder", *base), _convert_="all")(vocab_size=37000)
    assert count_parameters(model) == 63_045_632


def test_gpt2_small_has_the_published_count() -> None:
    small = [
        "model/position=learned",
        "model/norm=layer",
        "model/feed_forward=gelu",
        "model.attention.bias=true",
        "model.d_model=768",
        "model.n_layers=12",
        "model.n_heads=12",
        "model.d_ff=3072",
        "model.max_seq_len=1024",
    ]
    with torch.device("meta"):
        model = instantiate(settings("decoder", *small), _convert_="all")(vocab_size=50257)
    assert count_parameters(model) == 124_439_808


def test_flops_by_hand() -> None:
    t = 7
    layer = 4 * D * D + 3 * D * F
    seen = t * (t + 1) // 2
    assert flops_per_token(on_meta("decoder"), t) == 6 * (2 * layer + V * D) + 3 * 4 * D * 2 * seen / t
    windowed = on_meta("decoder", "model/attention=sliding_window", "model.attention.window=3")
    seen = 1 + 2 + 3 * (t - 2)
    assert flops_per_token(windowed, t) == 6 * (2 * layer + V * D) + 3 * 4 * D * 2 * seen / t


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 2, 5, 6, 9])
def test_pairs_are_those_of_the_mask(causal: bool, window: int | None) -> None:
    t = 6
    seen = AttentionMask(causal=causal, window=window).dense(t, t, torch.device("cpu"))
    windowed = [] if window is None else ["model/attention=sliding_window", f"model.attention.window={window}"]
    model = on_meta("decoder" if causal else "encoder", *windowed)
    weights = sum(w.weight.numel() for w in model.stack.modules() if isinstance(w, torch.nn.Linear))
    of_pairs = flops_per_token(model, t) * t / 3 - 2 * weights * t - model.embedding.flops(t) - model.head.flops(t)
    n_pairs = t * t if seen is None else int(seen.sum())
    assert of_pairs == pytest.approx(4 * D * 2 * n_pairs)


def test_flops_of_an_encoder_decoder_are_the_mean_over_both_sides() -> None:
    t = 7
    encoder, decoder = 4 * D * D + 2 * D * F, 8 * D * D + 2 * D * F
    pairs = 2 * t * t + 2 * (t * (t + 1) // 2 + t * t)
    forward = 2 * t * (2 * encoder + 2 * decoder + V * D) + 4 * D * pairs
    assert flops_per_token(on_meta("encoder_decoder"), t) == 3 * forward / (2 * t)


def test_flops_of_a_classifier_pass_the_head_once_a_text() -> None:
    with torch.device("meta"):
        model = instantiate(settings("encoder"), _convert_="all")(
            vocab_size=V, head=lambda table: ClassificationHead(table, n_classes=5, dropout=0.0, transform=DENSE)
        )
    t, layer = 7, 4 * D * D + 2 * D * F
    assert flops_per_token(model, t) == pytest.approx(6 * 2 * layer + 12 * D * 2 * t + 6 * (D * D + 5 * D) / t)


@pytest.mark.parametrize("family", FAMILIES)
def test_flops_equal_what_torch_counts(family: str) -> None:
    """torch counts the same matrix products; it counts all pairs, so without the causal half."""
    from torch.utils.flop_counter import FlopCounterMode

    model, t = build(family, "model.attention.kernel=eager"), 7
    tokens = torch.randint(0, V, (1, t))
    rows = 2 if family == "encoder_decoder" else 1
    with FlopCounterMode(display=False) as counter:
        (model(tokens, tokens) if rows == 2 else model(tokens)).logits.sum().backward()
    causal_layers = 0 if family == "encoder" else 2
    unseen = t * (t - 1) // 2
    expected = flops_per_token(model, t) * rows * t + causal_layers * 12 * D * unseen
    assert counter.get_total_flops() == pytest.approx(expected)


def test_the_embedding_of_a_head_is_enough() -> None:
    head = ClassificationHead(TokenEmbedding(V, D, scaled=False), n_classes=5, dropout=0.0, transform=DENSE)
    assert head.flops(9) == 2 * (D * D + 5 * D)


def test_a_mixture_costs_the_experts_that_a_token_takes() -> None:
    t, router, expert = 7, 4 * D, 3 * D * F
    model = on_meta("decoder", "model/feed_forward=mixture_shared")
    biases = 4
    assert count_parameters(model) == V * D + 2 * (4 * D * D + router + 5 * expert + biases + 2 * D) + D
    layer, seen = 4 * D * D + router + 3 * expert, t * (t + 1) // 2
    assert flops_per_token(model, t) == 6 * (2 * layer + V * D) + 3 * 4 * D * 2 * seen / t
