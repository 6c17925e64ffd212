import torch
from torch import nn

from triform.training.optimizers import adamw, muon


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


def test_only_matrices_decay_and_each_parameter_is_in_one_group() -> None:
    model = Tiny(tied=True)
    groups = adamw(model, 1e-3, (0.9, 0.98), 1e-9, 0.1).param_groups
    decay = {group["weight_decay"]: names(model, group["params"]) for group in groups}
    assert decay[0.1] == {"layer.weight", "out.weight"}
    assert decay[0.0] == {"embedding.weight", "layer.bias", "norm.weight", "norm.bias", "head.bias"}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_muon_takes_the_layers_matrices_and_leaves_an_untied_head_to_adamw() -> None:
    model = Tiny(tied=False)
    optimizer = muon(model, 1e-2, 0.95, 0.1, 1e-3, (0.9, 0.95), 1e-8)
    by_lr = {group["lr"]: names(model, group["params"]) for group in optimizer.param_groups}
    assert by_lr[1e-2] == {"layer.weight", "out.weight"}
    assert by_lr[1e-3] == {"embedding.weight", "layer.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"}


def test_muon_steps_every_parameter_and_its_state_comes_back_bitwise() -> None:
    def run(n: int, model: Tiny, optimizer: torch.optim.Optimizer) -> None:
        for step in range(n):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.arange(11)).square().sum().backward()
            optimizer.step()

    def build() -> tuple[Tiny, torch.optim.Optimizer]:
        torch.manual_seed(7)
        model = Tiny(tied=True)
        return model, muon(model, 1e-2, 0.95, 0.1, 1e-3, (0.9, 0.95), 1e-8)

    whole, optimizer = build()
    start = {name: p.clone() for name, p in whole.named_parameters()}
    run(3, whole, optimizer)
    middle = {key: value.clone() for key, value in whole.state_dict().items()}, optimizer.state_dict()
    saved = torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, middle)
    run(2, whole, optimizer)
    assert all(not torch.equal(p, start[name]) for name, p in whole.named_parameters())

    again, optimizer = build()
    again.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    run(2, again, optimizer)
    for name, p in whole.named_parameters():
        assert torch.equal(p, again.get_parameter(name)), name


def test_a_schedule_reaches_the_groups_that_are_stepped() -> None:
    model = Tiny(tied=True)
    optimizer = muon(model, 1e-2, 0.95, 0.1, 1e-3, (0.9, 0.95), 1e-8)
    optimizer.load_state_dict(optimizer.state_dict())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = {name: p.clone() for name, p in model.named_parameters()}
    model(torch.arange(11)).square().sum().backward()
    optimizer.step()
    scheduler.step()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]), name
