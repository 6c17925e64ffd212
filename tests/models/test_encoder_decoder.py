"""One override for all stacks, or for one."""

from typing import Any

import pytest
from torch import nn

from tests.models.composed import build, settings
from triform.layers.position.rotary import Rotary
from triform.layers.position.sinusoidal import Sinusoidal
from triform.models.encoder_decoder import spelled_out, unread


def windows(model: Any) -> list[int | None]:
    decoder = model.decoder.layers[0]
    return [model.encoder.layers[0].attention.window, decoder.attention.window, decoder.cross_attention.window]


def test_a_shared_part_changes_every_stack_but_the_window_of_cross_attention() -> None:
    model = build("encoder_decoder", "model/attention=sliding_window", "model.attention.window=5")
    assert windows(model) == [5, 5, None]
    grouped = build("encoder_decoder", "model/attention=grouped_query")
    assert grouped.decoder.layers[1].cross_attention.n_kv_heads == 2


def test_a_part_of_one_stack() -> None:
    model = build(
        "encoder_decoder",
        "model/attention@model.encoder.attention=sliding_window",
        "model.encoder.attention.window=3",
        "model/position@model.encoder.position=rotary",
        "model/attention=grouped_query",
        "model/attention@model.decoder.cross_attention=multi_head",
    )
    assert windows(model) == [3, None, None]
    assert isinstance(model.encoder.position, Rotary)
    assert isinstance(model.decoder.position, Sinusoidal)
    decoder = model.decoder.layers[0]
    assert (decoder.attention.n_kv_heads, decoder.cross_attention.n_kv_heads) == (2, 4)


def test_cross_attention_follows_the_shared_part_not_the_decoders_own() -> None:
    model = build("encoder_decoder", "model/attention@model.decoder.attention=grouped_query")
    decoder = model.decoder.layers[0]
    assert (decoder.attention.n_kv_heads, decoder.cross_attention.n_kv_heads) == (2, 4)


def test_sizes_of_one_stack() -> None:
    model = build(
        "encoder_decoder",
        "model.encoder.n_layers=3",
        "model.decoder.n_heads=3",
        "model.encoder.d_ff=17",
        "model.decoder.max_seq_len=9",
    )
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (3, 2)
    assert (model.encoder.layers[0].attention.n_heads, model.decoder.layers[0].attention.n_heads) == (4, 3)
    assert model.encoder.layers[0].feed_forward.up_proj.out_features == 17
    assert (model.encoder.max_seq_len, model.decoder.max_seq_len, model.max_seq_len) == (16, 9, 9)


def test_pre_placement_ends_both_stacks_with_a_norm() -> None:
    pre, post = build("encoder_decoder", "model/placement=pre"), build("encoder_decoder")
    assert isinstance(pre.encoder.final_norm, nn.LayerNorm)
    assert isinstance(pre.decoder.final_norm, nn.LayerNorm)
    assert isinstance(post.encoder.final_norm, nn.Identity)


def test_a_window_chosen_for_cross_attention_is_refused() -> None:
    with pytest.raises(Exception, match="window of 32 tokens has no meaning between source and target"):
        build("encoder_decoder", "model/attention@model.decoder.cross_attention=sliding_window")


def test_a_key_that_no_stack_has_is_refused() -> None:
    with pytest.raises(Exception, match=r"model\.encoder\.n_layer is nothing .* nearest is model\.encoder\.n_layers"):
        build("encoder_decoder", "+model.encoder.n_layer=3")
    with pytest.raises(Exception, match=r"model\.encoder\.cross_attention is nothing"):
        build("encoder_decoder", "+model/attention@model.encoder.cross_attention=multi_head")


def test_unread_names_the_keys_that_change_nothing() -> None:
    own = settings(
        "encoder_decoder",
        "model.encoder.n_layers=3",
        "model.decoder.n_layers=1",
        "model.encoder.n_heads=2",
        "model/attention@model.encoder.attention=multi_head",
        "model/attention@model.decoder.attention=multi_head",
    )
    assert unread(own, ["n_layers", "n_heads", "d_model", "attention", "attention.window"]) == ["n_layers"]
    crossed = own | {"decoder": own["decoder"] | {"cross_attention": own["attention"]}}
    assert unread(crossed, ["attention", "attention.window"]) == ["attention", "attention.window"]


def test_spelled_out_configs_of_one_model_are_equal() -> None:
    shared = settings("encoder_decoder", "model/attention=sliding_window", "model.attention.window=5")
    own = settings(
        "encoder_decoder",
        "model.n_layers=9",
        "model.encoder.n_layers=2",
        "model.decoder.n_layers=2",
        "model/attention=sliding_window",
        "model.attention.window=5",
        "model/attention@model.decoder.cross_attention=multi_head",
        "model/norm@model.decoder.norm=layer",
    )
    assert shared != own
    assert spelled_out(shared) == spelled_out(own)
    assert spelled_out(shared)["decoder"]["cross_attention"]["window"] is None
    assert spelled_out(shared)["encoder"]["attention"]["window"] == 5
    assert spelled_out(settings("encoder_decoder", "model.decoder.d_ff=9")) != spelled_out(settings("encoder_decoder"))
