import pytest
import torch
from torch import nn

from triform.layers.norm.rms import RMSNorm


def test_equals_torch() -> None:
    ours, theirs = RMSNorm(24, eps=1e-3), nn.RMSNorm(24, eps=1e-3)
    nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 7, 24)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_before_the_weight_like_llama(dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    ours, theirs = RMSNorm(4096, eps=1e-6), LlamaRMSNorm(4096, eps=1e-6)
    nn.init.normal_(ours.weight, mean=1.0, std=0.2, generator=torch.Generator().manual_seed(0))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(1, 3, 4096, generator=torch.Generator().manual_seed(1)).to(dtype)
    out = ours.to(dtype)(x)
    assert out.dtype == dtype
    assert torch.equal(out, theirs.to(dtype)(x))
