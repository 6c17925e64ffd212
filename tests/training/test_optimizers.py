import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tests.models.composed import FAMILIES, build
from triform.run.compose import compose
from triform.run.help import groups
from triform.training.optimizers import Lion, adamw, below_head, lion, muon, own_average, schedule_free, weights


class Tiny(nn.Module):
    """Embedding, two layers and a head that shares the embedding's table."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.layer = nn.Linear(6, 5)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(5, 6, bias=False)
        self.head = nn.Linear(6, 11)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.out(self.norm(self.layer(self.embedding(ids)))))


def names(model: nn.Module, params: list[torch.Tensor]) -> set[str]:
    return {name for name, p in model.named_parameters() for q in params if p is q}


ADAMW = {"betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.1, "decay_embeddings": False, "layer_decay": 1.0}
MUON = {**ADAMW, "momentum": 0.95, "adamw_lr": 1e-3}
FREE = {**ADAMW, "betas": (0.8, 0.98)}


def learn(n: int, model: Tiny, optimizer: Optimizer) -> None:
    for step in range(n):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.arange(11)).square().sum().backward()
        optimizer.step()


def test_only_matrices_decay_and_each_parameter_is_in_one_group() -> None:
    model = Tiny(tied=True)
    groups = adamw(model, 1e-3, **ADAMW).param_groups
    decay = {group["weight_decay"]: names(model, group["params"]) for group in groups}
    assert decay[0.1] == {"layer.weight", "out.weight"}
    assert decay[0.0] == {"embedding.weight", "layer.bias", "norm.weight", "norm.bias", "head.bias"}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_muon_takes_the_layers_matrices_and_leaves_an_untied_head_to_adamw() -> None:
    model = Tiny(tied=False)
    optimizer = muon(model, 1e-2, **MUON)
    rates = {(g["lr"], g["weight_decay"]): names(model, g["params"]) for g in optimizer.param_groups}
    assert rates == {
        (1e-2, 0.1): {"layer.weight", "out.weight"},
        (1e-3, 0.1): {"head.weight"},
        (1e-3, 0.0): {"embedding.weight", "layer.bias", "norm.weight", "norm.bias", "head.bias"},
    }


@pytest.mark.parametrize(
    "made",
    [
        partial(muon, lr=1e-2, **MUON),
        partial(lion, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, decay_embeddings=True, layer_decay=0.5),
        partial(schedule_free, lr=1e-2, **FREE),
    ],
    ids=["muon", "lion", "schedule_free"],
)
def test_every_parameter_is_stepped_and_the_state_comes_back_bitwise(made: Callable[[nn.Module], Optimizer]) -> None:
    def fresh() -> tuple[Tiny, Optimizer]:
        torch.manual_seed(7)
        model = Tiny(tied=True)
        return model, made(model)

    whole, optimizer = fresh()
    start = {name: p.clone() for name, p in whole.named_parameters()}
    learn(3, whole, optimizer)
    middle = {key: value.clone() for key, value in whole.state_dict().items()}, optimizer.state_dict()
    saved = torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, middle)
    learn(2, whole, optimizer)
    assert all(not torch.equal(p, start[name]) for name, p in whole.named_parameters())

    again, optimizer = fresh()
    again.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    learn(2, again, optimizer)
    for name, p in whole.named_parameters():
        assert torch.equal(p, again.get_parameter(name)), name


def test_a_schedule_reaches_the_groups_that_are_stepped() -> None:
    model = Tiny(tied=True)
    optimizer = muon(model, 1e-2, **MUON)
    optimizer.load_state_dict(optimizer.state_dict())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = {name: p.clone() for name, p in model.named_parameters()}
    model(torch.arange(11)).square().sum().backward()
    optimizer.step()
    scheduler.step()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]), name


def test_embeddings_decay_where_asked_for() -> None:
    model = Tiny(tied=True)
    made = adamw(model, 1e-3, **{**ADAMW, "decay_embeddings": True}).param_groups
    decay = {group["weight_decay"]: names(model, group["params"]) for group in made}
    assert decay[0.1] == {"embedding.weight", "layer.weight", "out.weight"}


OPTIMIZERS = groups()["optimizer"]


OWN_SIZES = {
    **dict.fromkeys(("llama2_7b", "llama3_1b", "llama3_8b", "mistral_7b", "qwen3_0_6b"), ("model.n_kv_heads=2",)),
    **dict.fromkeys(("vit_base", "vit_tiny"), ("model.embedding.image_size=8", "model.embedding.patch_size=4")),
}
"""What these presets state of the sizes that the tests make small."""


@pytest.mark.parametrize("preset", [name for name in groups()["model"] if name != "from_pretrained"])
@pytest.mark.parametrize("option", OPTIMIZERS)
def test_each_parameter_of_every_model_is_in_one_group(option: str, preset: str) -> None:
    from triform.run.build import build as build_part

    model = build(preset, *OWN_SIZES.get(preset, ()))
    node = compose([f"optimizer={option}"])["optimizer"] | {"lr": 1e-3, "weight_decay": 0.1, "layer_decay": 0.9}
    if (option, preset) in (("muon", "bytenet"), ("muon", "convs2s")):  # convolutions alone
        with pytest.raises(ValueError, match=r"have no matrices, .*; choose another one, such as optimizer=adamw"):
            build_part(node, key="optimizer")(model)
        return
    made = build_part(node, key="optimizer")(model).param_groups
    ids = [id(p) for group in made for p in group["params"]]
    assert sorted(ids) == sorted({id(p) for p in model.parameters()})
    decays = {id(p): group["weight_decay"] > 0 for group in made for p in group["params"]}
    for name, p in model.named_parameters():
        table = ("embedding" in name and "patch_proj" not in name) or "position" in name
        plain = p.ndim < 2 or table
        assert decays[id(p)] != plain, name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_lower_a_layer_the_smaller_its_learning_rate(family: str) -> None:
    model = build(family)
    factor = {weight.name: weight.lr_factor for weight in weights(model, 0.5)}
    top = 4 if family == "encoder_decoder" else 2
    for name, depth in below_head(model).items():
        assert factor[name] == 0.5**depth, name
    stacks = ("encoder", "decoder") if family == "encoder_decoder" else ("stack",)
    for below, stack in enumerate(stacks):
        for name, depth in below_head(model).items():
            if match := re.match(rf"{stack}\.layers\.(\d)\.", name):
                assert depth == top - 2 * below - int(match[1]), name
            if name.startswith(f"{stack}.final_norm."):
                assert depth == top - 2 * below - 1, name
    assert factor["embedding.table.weight"] == 0.5 ** (top + 1)


def test_layer_decay_outside_its_range_is_refused() -> None:
    for wrong in (0.0, 1.1):
        with pytest.raises(ValueError, match=r"layer_decay=.* set optimizer\.layer_decay"):
            weights(Tiny(tied=True), wrong)


def test_lion_is_algorithm_2_of_its_paper() -> None:
    """Written out: c = b1 m + (1 - b1) g; w -= lr (sign(c) + decay w); m = b2 m + (1 - b2) g."""
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(5, 3))
    optimizer = Lion([{"params": [w], "weight_decay": 0.1}], 0.01, (0.9, 0.99))
    expected, m = w.detach().double(), torch.zeros(5, 3, dtype=torch.float64)
    for _ in range(6):
        w.grad = torch.randn(5, 3)
        g = w.grad.double()
        expected = expected - 0.01 * ((0.9 * m + 0.1 * g).sign() + 0.1 * expected)
        m = 0.99 * m + 0.01 * g
        optimizer.step()
    torch.testing.assert_close(w.detach(), expected.float())


def test_schedule_free_averages_as_its_paper() -> None:
    """Defazio et al. 2024, algorithm 1, written out: x is the mean of z weighted by the squared learning rate."""
    torch.manual_seed(0)
    start = torch.randn(4, 3)
    model = nn.Linear(3, 4, bias=False)
    model.weight.data.copy_(start)
    optimizer = schedule_free(model, 0.1, **FREE)
    beta1, beta2 = FREE["betas"]
    x = z = start.double()
    square, weighed = torch.zeros_like(x), 0.0
    for t in range(1, 7):
        lr = optimizer.param_groups[0]["lr"] = 0.1 * min(1, t / 3)  # as a schedule with warm-up does
        y = (1 - beta1) * z + beta1 * x
        torch.testing.assert_close(model.weight.detach(), y.float())
        model.weight.grad = torch.randn(4, 3)
        g = model.weight.grad.double()
        optimizer.step()
        square = beta2 * square + (1 - beta2) * g**2
        z = z - lr * (g / ((square / (1 - beta2**t)).sqrt() + 1e-9) + 0.1 * y)
        weighed += lr**2
        x = x + lr**2 / weighed * (z - x)
        average = own_average(optimizer)
        assert average is not None
        torch.testing.assert_close(average[model.weight], x.float())


def test_only_schedule_free_has_an_average_of_its_own() -> None:
    model = Tiny(tied=True)
    assert own_average(adamw(model, 1e-3, **ADAMW)) is None
    assert own_average(muon(model, 1e-3, **MUON)) is None
    before = own_average(schedule_free(model, 1e-3, **FREE))
    assert before is not None
    assert all(torch.equal(p, before[p]) for p in model.parameters())


@pytest.mark.parametrize("betas", [[0.9], [0.9, 0.98, 0.99], []])
@pytest.mark.parametrize(("factory", "others"), [(adamw, ADAMW), (muon, MUON), (schedule_free, FREE), (lion, None)])
def test_betas_are_two(factory: Callable[..., Optimizer], others: dict | None, betas: object) -> None:
    arguments = others or {"weight_decay": 0.0, "decay_embeddings": False, "layer_decay": 1.0}
    with pytest.raises(ValueError, match=r"optimizer\.betas=.* are not two numbers; set optimizer\.betas"):
        factory(Tiny(tied=True), lr=1e-3, **{**arguments, "betas": betas})
