import pytest
import torch

from triform.layers.position.rotary import Rotary


def rotary(head_dim: int = 6, theta: float = 1e4) -> Rotary:
    return Rotary(d_model=24, n_heads=4, head_dim=head_dim, max_seq_len=9, causal=True, theta=theta)


def test_turns_each_pair_as_a_complex_number() -> None:
    x, positions = torch.randn(2, 4, 3, 6), torch.tensor([[0, 1, 5], [2, 7, 1000]])
    turned = rotary().rotation(positions)(x)
    frequencies = torch.tensor([1.0, 10000 ** (-2 / 6), 10000 ** (-4 / 6)])
    phases = positions[:, None, :, None] * frequencies
    expected = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones_like(phases), phases)
    torch.testing.assert_close(turned, torch.cat((expected.real, expected.imag), dim=-1))


def test_scores_depend_on_distances_alone() -> None:
    q, k, positions = torch.randn(1, 1, 5, 6), torch.randn(1, 1, 5, 6), torch.arange(5)[None]
    near, far = rotary().rotation(positions), rotary().rotation(positions + 300)
    scores = near(q) @ near(k).transpose(-2, -1)
    torch.testing.assert_close(far(q) @ far(k).transpose(-2, -1), scores, rtol=1e-4, atol=1e-4)


def test_equals_hugging_face() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=24, num_attention_heads=4, rope_theta=500.0)
    q, k, positions = torch.randn(2, 4, 7, 6), torch.randn(2, 2, 7, 6), torch.arange(7).expand(2, -1)
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    theta = config.rope_parameters["rope_theta"]
    turn = rotary(theta=theta).rotation(positions)
    for ours, theirs in zip((turn(q), turn(k)), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_half_precision_turns_by_exact_phases() -> None:
    x, far = torch.randn(1, 1, 1, 6).bfloat16(), torch.tensor([[1001]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        turned = rotary().to(torch.bfloat16).rotation(far)(x)
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned, rotary().rotation(far)(x.float()).bfloat16(), rtol=0, atol=0)


def test_refuses_an_odd_width() -> None:
    with pytest.raises(ValueError, match=r"head_dim=5 is odd, but it turns pairs; set model\.head_dim"):
        rotary(head_dim=5)
