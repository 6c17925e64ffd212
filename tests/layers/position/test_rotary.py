from typing import Any

import pytest
import torch

from triform.layers.position.rotary import Rotary
from triform.layers.position.scaling import LinearScaling, Llama3Scaling, YarnScaling

CPU = torch.device("cpu")


def rotary(head_dim: int = 6, theta: float = 1e4, **changes: Any) -> Rotary:
    settings: dict[str, Any] = {"interleaved": False, "fraction": 1.0, "scaling": None}
    sizes: dict[str, Any] = {"d_model": 24, "n_heads": 4, "head_dim": head_dim, "max_seq_len": 9, "causal": True}
    return Rotary(**sizes, theta=theta, **settings | changes)


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


def test_interleaved_turns_neighbours() -> None:
    x, positions = torch.randn(2, 4, 3, 6), torch.tensor([[0, 1, 5], [2, 7, 1000]])
    turned = rotary(interleaved=True).rotation(positions)(x)
    phases = positions[:, None, :, None] * torch.tensor([1.0, 10000 ** (-2 / 6), 10000 ** (-4 / 6)])
    expected = torch.view_as_complex(x.unflatten(-1, (3, 2))) * torch.polar(torch.ones_like(phases), phases)
    torch.testing.assert_close(turned, torch.view_as_real(expected).flatten(-2))


def test_pairings_differ_by_the_order_of_columns() -> None:
    x, positions, order = torch.randn(1, 4, 5, 6), torch.arange(5)[None], [0, 2, 4, 1, 3, 5]
    apart, neighbours = rotary().rotation(positions), rotary(interleaved=True).rotation(positions)
    torch.testing.assert_close(apart(x[..., order]), neighbours(x)[..., order])


def test_a_fraction_of_a_head_turns() -> None:
    x, positions = torch.randn(1, 4, 5, 12), torch.arange(5)[None]
    turned = rotary(12, fraction=0.5).rotation(positions)(x)
    assert torch.equal(turned[..., 6:], x[..., 6:])
    assert torch.equal(turned[..., :6], rotary(6).rotation(positions)(x[..., :6]))


def test_llama3_scaling_has_the_published_numbers() -> None:
    def scaled(head_dim: int, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        scaling = Llama3Scaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=8192)
        usual = rotary(head_dim, 5e5).frequencies(CPU)
        return rotary(head_dim, 5e5, scaling=scaling).frequencies(CPU), usual

    small, usual = scaled(64, 32.0)
    torch.testing.assert_close(small[:15], usual[:15], rtol=0, atol=0)
    torch.testing.assert_close(
        small[15:18], torch.tensor([1.290548e-03, 4.295568e-04, 9.708288e-05]), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(small[18:], usual[18:] / 32)
    large, usual = scaled(128, 8.0)
    torch.testing.assert_close(large[:29], usual[:29], rtol=0, atol=0)
    torch.testing.assert_close(large[[29, 34]], torch.tensor([2.166571e-03, 1.785078e-04]), rtol=1e-6, atol=0)
    torch.testing.assert_close(large[35:], usual[35:] / 8)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_scaling_equals_hugging_face(kind: str, fraction: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    ours, theirs = {
        "linear": (LinearScaling(factor=3.0), {"factor": 3.0}),
        "llama3": (
            Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=256),
            {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
        ),
        "yarn": (
            YarnScaling(factor=4.0, original_max_seq_len=2048, beta_fast=32.0, beta_slow=1.0, attention_factor=None),
            {"factor": 4.0, "original_max_position_embeddings": 2048},
        ),
    }[kind]
    parameters = {"rope_type": kind, "rope_theta": 1e4, "partial_rotary_factor": fraction, **theirs}
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=8192, rope_parameters=parameters
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, CPU)
    torch.testing.assert_close(rotary(64, fraction=fraction, scaling=ours).frequencies(CPU), frequencies)
    assert ours.attention_factor == pytest.approx(factor)
    x = torch.ones(1, 1, 1, 64)
    turned = rotary(64, scaling=ours).rotation(torch.tensor([[0]]))(x)
    torch.testing.assert_close(turned, x * factor)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fraction": 0.5}, r"fraction=0\.5 of a head is 3 wide, but it turns pairs; .* model\.position\.fraction"),
        ({"fraction": 0.1}, r"fraction=0\.1 of a head is 0 wide"),
        ({"fraction": 1.5}, r"fraction=1\.5 is no share of a head; set model\.position\.fraction"),
        ({"theta": 1.0}, r"theta=1\.0 is not above 1; set model\.position\.theta"),
        ({"scaling": "ntk"}, r"scaling='ntk' is unknown; set model/position to rotary_linear"),
        ({"scaling": {"factor": 2.0}}, r"scaling=\{'factor': 2\.0\} is unknown"),
    ],
)
def test_refuses_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rotary(**changes)


def test_refuses_scalings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match=r"LinearScaling: factor=0\.5 is less than 1; set model\.position\.scaling"):
        LinearScaling(factor=0.5)
    with pytest.raises(ValueError, match=r"low_freq_factor=4\.0 is not between 0 and high_freq_factor=1\.0"):
        Llama3Scaling(factor=8.0, low_freq_factor=4.0, high_freq_factor=1.0, original_max_seq_len=9)
    with pytest.raises(ValueError, match=r"original_max_seq_len=0 is less than 1 token"):
        Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=0)
    with pytest.raises(ValueError, match=r"beta_slow=2\.0 is not between 0 and beta_fast=1\.0"):
        YarnScaling(factor=4.0, original_max_seq_len=9, beta_fast=1.0, beta_slow=2.0, attention_factor=None)
