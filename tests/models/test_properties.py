"""What holds for every model, whatever its parts: who may influence whom."""

import pytest
import torch
from torch import Tensor, nn

from tests.models.composed import FAMILIES, build, ids, read

POSITIONS = ("sinusoidal", "learned", "rotary", "none")
ATTENTIONS = ("multi_head", "grouped_query", "sliding_window")
PARTS = [(f"model/position={position}",) for position in POSITIONS] + [
    ("model/attention=grouped_query",),
    ("model/attention=sliding_window", "model.attention.window=3"),
    ("model/placement=post", "model/norm=layer"),
]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
@torch.no_grad()
def test_the_future_never_changes_the_past(family: str, parts: tuple[str, ...]) -> None:
    model, a = build(family, *parts), ids(2, 7)
    b = a.clone()
    b[:, 5] += 1
    if family == "decoder":
        before, after = model(a).logits, model(b).logits
    else:
        before, after = model(a, a).logits, model(a, b).logits
    close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@torch.no_grad()
def test_an_encoder_reads_both_ways() -> None:
    model, a = build("encoder"), ids(2, 7)
    b = a.clone()
    b[:, 5] += 1
    assert (model(a).logits != model(b).logits).any(-1).all()


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_row_alone_equals_the_row_in_a_batch(family: str, parts: tuple[str, ...], side: str) -> None:
    model, rows = build(family, *parts), [ids(1, 7, seed=1), ids(1, 4, seed=2), ids(1, 1, seed=3)]
    batch = torch.zeros(3, 7, dtype=torch.long)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    for i, row in enumerate(rows):
        n = row.shape[1]
        place = slice(7 - n, 7) if side == "left" else slice(0, n)
        batch[i, place], padding[i, place] = row, True
    together = read(model, batch, padding_mask=padding).logits
    assert together.isfinite().all()
    for i, row in enumerate(rows):
        close(together[i][padding[i]], read(model, row).logits[0])


KERNELS = ("sdpa", "eager")


def gradients(model: nn.Module, *losses: Tensor) -> dict[str, Tensor]:
    """Of the sum of what each row's real tokens give."""
    model.zero_grad()
    torch.stack(losses).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_alone_and_in_a_batch_give_one_gradient(family: str, side: str, kernel: str) -> None:
    """Also where a row of the batch is nothing but padding, in either kernel."""
    model, rows = build(family, f"model.attention.kernel={kernel}"), [ids(1, 7, seed=1), ids(1, 4, seed=2)]
    batch, padding = torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 7, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(7 - row.shape[1], 7) if side == "left" else slice(0, row.shape[1])
        batch[i, place], padding[i, place] = row, True
    alone = gradients(model, *(read(model, row).logits.square().sum() for row in rows))
    together = read(model, batch, padding_mask=padding).logits
    assert together.isfinite().all()
    for name, gradient in gradients(model, together[padding].square().sum()).items():
        torch.testing.assert_close(gradient, alone[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_documents_alone_and_packed_give_one_gradient(family: str, kernel: str) -> None:
    model, a, b = build(family, f"model.attention.kernel={kernel}"), ids(1, 4, seed=1), ids(1, 3, seed=2)
    alone = gradients(model, model(a).logits.square().sum(), model(b).logits.square().sum())
    packed = model(torch.cat((a, b), dim=1), document_ids=torch.tensor([[0] * 4 + [1] * 3])).logits
    for name, gradient in gradients(model, packed.square().sum()).items():
        torch.testing.assert_close(gradient, alone[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_in_half_precision_learns_the_same(family: str, kernel: str) -> None:
    """Padded, with a row of nothing but padding: finite, and near the gradient in float32."""
    parts = (f"model.attention.kernel={kernel}",)
    exact, half = build(family, *parts), build(family, *parts).to(torch.bfloat16)
    padding = torch.arange(7) < torch.tensor([[7], [4], [0]])
    batch = torch.where(padding, ids(3, 7), 0)
    learned = [
        gradients(model, read(model, batch, padding_mask=padding).logits[padding].float().square().sum())
        for model in (exact, half)
    ]
    for name, gradient in learned[1].items():
        assert gradient.isfinite().all()
        size = max(1e-3, float(learned[0][name].norm()))
        assert (gradient.float() - learned[0][name]).norm() / size < 0.1, name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_of_padding_changes_no_gradient(family: str) -> None:
    model, row = build(family), ids(1, 7)
    read(model, row).logits.square().sum().backward()
    alone = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    padding = torch.tensor([[True], [False]]).expand(2, 7)
    read(model, torch.cat((row, torch.zeros_like(row))), padding_mask=padding).logits[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        close(parameter.grad, alone[name])


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("family", ["encoder", "decoder"])
@pytest.mark.parametrize("counted", [False, True])
@torch.no_grad()
def test_documents_of_a_packed_row_do_not_see_each_other(family: str, parts: tuple[str, ...], counted: bool) -> None:
    model, a, b = build(family, *parts), ids(1, 4, seed=1), ids(1, 3, seed=2)
    arguments = {"document_ids": torch.tensor([[0] * 4 + [1] * 3])}
    if counted:
        arguments["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    packed = model(torch.cat((a, b), dim=1), **arguments).logits
    close(packed[:, :4], model(a).logits)
    close(packed[:, 4:], model(b).logits)


@torch.no_grad()
def test_a_prefix_is_read_both_ways() -> None:
    model, a = build("decoder"), ids(1, 7)
    prefix = torch.tensor([4])
    before = model(a, prefix_length=prefix).logits
    for changed, influenced in [(3, [True] * 7), (5, [False] * 5 + [True] * 2)]:
        b = a.clone()
        b[:, changed] += 1
        after = model(b, prefix_length=prefix).logits
        assert (before - after).abs().amax(-1).gt(1e-5)[0].tolist() == influenced


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_order_matters_with_positions(family: str, position: str) -> None:
    model, a = build(family, f"model/position={position}"), ids(1, 7)
    moved = read(model, a.roll(1, dims=1)).hidden.roll(-1, dims=1)
    assert not torch.allclose(moved[:, 3], read(model, a).hidden[:, 3], atol=1e-4)


@torch.no_grad()
def test_an_encoder_without_positions_reads_a_bag_of_tokens() -> None:
    model, a = build("encoder", "model/position=none"), ids(1, 7)
    close(model(a.flip(1)).hidden.flip(1), model(a).hidden)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_is_for_training_only(family: str) -> None:
    model = build(family, "model.dropout=0.5", "model.attention.weights_dropout=0.5")
    a = ids(2, 7)
    assert torch.equal(read(model, a).logits, read(model, a).logits)
    close(read(model, a).logits, read(build(family), a).logits)
    model.train()
    assert not torch.equal(read(model, a).logits, read(model, a).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_more_tokens_than_max_seq_len_are_refused_before_any_kernel(family: str) -> None:
    model = build(family)
    assert read(model, ids(1, 16)).logits.shape[1] == 16
    with pytest.raises(ValueError, match=r"17 tokens is longer than max_seq_len=16; set model\.max_seq_len") as error:
        read(model, ids(1, 17))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_half_precision_stays_near(position: str) -> None:
    """At position 1000 too: phases that were rounded to bf16 would be off by radians."""
    parts = (f"model/position={position}", "model.max_seq_len=1024")
    exact, half = build("decoder", *parts), build("decoder", *parts).to(torch.bfloat16)
    a, far = ids(1, 7), torch.arange(1000, 1007)[None]
    logits = exact(a, position_ids=far).logits
    torch.testing.assert_close(half(a, position_ids=far).logits.float(), logits, rtol=0, atol=0.02)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(exact(a, position_ids=far).logits.float(), logits, rtol=0, atol=0.02)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_computed_once_and_only_when_asked_for(family: str) -> None:
    model, calls = build(family), []
    model.head.register_forward_hook(lambda *_: calls.append(1))
    output = read(model, ids(2, 7))
    assert calls == []
    assert output.logits is output.logits
    assert calls == [1]
