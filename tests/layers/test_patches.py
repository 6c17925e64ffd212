import pytest
import torch
from torch import nn

from tests.models.composed import CONF, build
from triform.layers.patches import PatchEmbedding
from triform.models.cost import flops_per_token


def tiny(**changed: int) -> PatchEmbedding:
    return PatchEmbedding(24, **{"image_size": 12, "patch_size": 4, "channels": 2, **changed})


def test_patches_equal_a_convolution_in_reading_order() -> None:
    torch.manual_seed(0)
    embedding, images = tiny(), torch.randn(3, 2, 12, 12)
    nn.init.normal_(embedding.cls)
    convolution = nn.Conv2d(2, 24, kernel_size=4, stride=4)
    convolution.weight.data = embedding.patch_proj.weight.detach().unflatten(1, (2, 4, 4))
    convolution.bias = embedding.patch_proj.bias
    x = embedding(images)
    assert x.shape == (3, 1 + 9, 24)
    assert embedding.seq_len == 10
    torch.testing.assert_close(x[:, 1:], convolution(images).flatten(2).transpose(1, 2))
    torch.testing.assert_close(x[:, 0], embedding.cls.expand(3, 24))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"patch_size": 5}, r"image_size=12 is not a multiple of patch_size=5; set model\.embedding\.patch_size"),
        ({"patch_size": 0}, r"patch_size=0 is less than 1; set model\.embedding\.patch_size"),
        ({"channels": 0}, r"channels=0 is less than 1; set model\.embedding\.channels"),
    ],
)
def test_sizes_are_checked(changed: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**changed)


def test_other_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images are \(1, 12, 12\) .*, not \(2, 12, 12\); scale them"):
        tiny()(torch.zeros(3, 1, 12, 12))
    with pytest.raises(ValueError, match=r"token_type_ids are given, but an image has no tokens"):
        tiny()(torch.zeros(3, 2, 12, 12), torch.zeros(3, 10, dtype=torch.long))


VIT = (
    "model/embedding=patches", "model.embedding.image_size=12", "model.embedding.patch_size=4",
    "model.embedding.channels=2", "model/head=classification_linear", "model.head.n_classes=5",
)  # fmt: skip


@pytest.mark.parametrize("init", sorted(path.stem for path in (CONF / "model" / "init").glob("*.yaml")))
def test_an_encoder_of_images_begins_and_learns(init: str) -> None:
    model = build("encoder", *VIT, f"model/init={init}", vocab_size=None)  # parameters are NaN before
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert model.embedding.cls.eq(0).all()
    assert not model.embedding.patch_proj.weight.eq(0).any()
    images, labels = torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 4, 2])
    output = model.train()(images)
    assert output.hidden.shape == (3, 10, 24)
    assert output.logits.shape == (3, 10, 5)
    model.head(output.hidden[:, 0], labels, nn.functional.cross_entropy).backward()
    for name, parameter in model.named_parameters():
        if name == "stack.position.table.weight":
            assert parameter.grad[:10].ne(0).any(dim=1).all()
            assert parameter.grad[10:].eq(0).all()
        else:
            assert parameter.grad.ne(0).any(), name


def test_a_row_of_images_reads_the_same_alone() -> None:
    model, images = build("encoder", *VIT, vocab_size=None), torch.randn(3, 2, 12, 12)
    torch.testing.assert_close(model(images).logits[1:2], model(images[1:2]).logits)


def test_flops_count_the_patches() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = build("encoder", *VIT, "model.attention.kernel=eager", vocab_size=None)
    with FlopCounterMode(display=False) as counter:
        model.head(model(torch.randn(1, 2, 12, 12)).hidden[:, 0])
    assert flops_per_token(model, 10) * 10 / 3 == counter.get_total_flops()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.max_seq_len=9"], r"PatchEmbedding makes 10 vectors .* max_seq_len=9; set model\.max_seq_len to 10"),
        (
            ["model.n_token_types=2"],
            r"n_token_types=2 has no meaning under PatchEmbedding.*set model\.n_token_types to 0",
        ),
        (
            ["model.scale_embedding=true"],
            r"scale_embedding=True has no meaning .*; set model\.scale_embedding to False",
        ),
        (["model/head=language_model"], r"PatchEmbedding has no tokens to choose from"),
    ],
)
def test_what_images_cannot_have_is_refused(overrides: list[str], message: str) -> None:
    settings = [*VIT, *overrides]
    if "model/head=language_model" in overrides:
        settings = [word for word in settings if ".n_classes" not in word and "classification" not in word]
    with pytest.raises(Exception, match=message):
        build("encoder", *settings, vocab_size=None)


def test_tokens_need_a_vocabulary() -> None:
    with pytest.raises(Exception, match=r"vocab_size=None is no number of tokens; set model\.vocab_size"):
        build("encoder", vocab_size=None)
