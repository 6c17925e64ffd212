"""Published architectures as YAML files: each has exactly as many parameters as it should."""

import math

import pytest
import torch
from hydra.utils import instantiate

from tests.models.composed import CONF, OmegaConf, compose, initialize_config_dir

PARAMETERS = {
    "transformer_base": 63_045_632,  # without biases in attention, as the authors' code; the paper says 65 M
    "transformer_big": 214_171_648,  # the same; the paper says 213 M
    "marian_base": 74_410_496 - 2 * 512 * 512,  # the two tables of fixed sines, which the published number counts
    "bert_base": 109_514_298,  # with the head of masked language modelling
    "bert_large": 335_174_458,
    "roberta_base": 124_697_433,
    "distilbert": 66_985_530,
    "modernbert_base": 149_655_232,
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "llama2_7b": 6_738_415_616,
    "llama3_8b": 8_030_261_248,
    "llama3_1b": 1_235_814_400,
    "qwen2_0_5b": 494_032_768,
    "qwen3_0_6b": 596_049_920,
    "gemma_2b": 2_506_172_416,
    "mistral_7b": 7_241_732_096,
    "t5_small": 60_506_624,
    "t5_base": 222_903_552,
    "t5_v1_1_small": 76_961_152,
    "t5_v1_1_base": 247_577_856,
    "bart_base": 139_420_416,
    "bart_large": 406_291_456,
    "vit_base": 86_567_656,  # with a head for 1000 classes
}
FAMILIES = ("encoder", "decoder", "encoder_decoder")
SMALL = ("lstm", "gnmt", "bytenet", "convs2s")  # forms of published architectures, not their sizes
PRESETS = sorted(
    file.stem for file in (CONF / "model").glob("*.yaml") if file.stem not in (*FAMILIES, *SMALL, "from_pretrained")
)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_as_many_parameters_as_was_published(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        node = OmegaConf.to_container(compose(overrides=[f"+model={name}"]).model, resolve=True)
    with torch.device("meta"):
        model = instantiate(node, _convert_="all")()
    assert sum(math.prod(parameter.shape) for parameter in model.parameters()) == PARAMETERS[name]


def test_every_preset_is_counted_or_tiny() -> None:
    assert {name for name in PRESETS if not name.endswith("_tiny")} <= PARAMETERS.keys()
