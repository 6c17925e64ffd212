"""What a part says of how several ranks compute it."""

import torch
from torch import Tensor, nn

from triform.layers.lora import LoRA
from triform.layers.tensor_parallel import Ranks


class Half(nn.Module):
    """A part whose last projection is cut by its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.out_proj = nn.Linear(64, 6)


def adapter_of(place: int) -> nn.Module:
    part = Half()
    LoRA(rank=2, alpha=4.0, dropout=0.5, targets=["out_proj"]).adapt(part)
    Ranks(None, 2, place).rows(part, "out_proj")
    adapter = part.out_proj.adapter
    assert isinstance(adapter, nn.Module)
    return adapter


def test_ranks_drop_other_ones_of_their_inputs_and_go_on_from_one_stream() -> None:
    kept: list[Tensor] = []
    after: list[Tensor] = []
    for place in (0, 1):
        adapter = adapter_of(place).train()
        adapter.get_submodule("dropout").register_forward_hook(lambda module, args, out: kept.append(out != 0))
        torch.manual_seed(5)
        adapter(torch.ones(3, 32))
        after.append(torch.rand(4))
    assert not torch.equal(kept[0], kept[1])
    assert torch.equal(after[0], after[1])
