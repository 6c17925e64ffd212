from collections.abc import Sequence

import pytest

from triform.run.compose import compose
from triform.run.errors import BadInput
from triform.run.job import settled
from triform.sweeps.compose import config_of


@pytest.mark.parametrize(
    "words",
    [
        ["seed=1", "optimizer.lr=0.1"],
        ["seed=2", "optimizer.lr=1e-2", "name='two words'"],
        ["optimizer=muon", "seed=1"],  # takes back what the recipe says of AdamW
        ["optimizer=muon", "optimizer.lr=0.02"],
        ["model=gpt2", "model/attention=alternate", "model.n_layers=3"],  # takes back GPT-2's attention.bias
        ["model=encoder_decoder", "model/position@model.encoder.position=rotary", "model.encoder.n_layers=3"],
        ["callbacks=ema", "callbacks.average.decay=0.5"],
        ["optimizer.lr=0.1", "++optimizer.lr=0.2"],  # the later one counts
    ],
)
def test_a_job_is_composed_as_a_run_is(words: Sequence[str]) -> None:
    """Jobs that choose the same options share a composition, which no job may leave changed."""
    expected = settled(compose(words))
    assert config_of(words) == expected
    config_of([*words, "seed=7", "optimizer.weight_decay=0.3"])
    assert config_of(words) == expected


@pytest.mark.parametrize("word", ["model.d_modle=3", "optimzer.lr=1", "optimizer.lr.x=2", "seed=[1"])
def test_a_wrong_word_is_refused_as_for_a_run(word: str) -> None:
    with pytest.raises(BadInput) as expected:
        compose([word])
    with pytest.raises(BadInput) as found:
        config_of([word])
    assert str(found.value) == str(expected.value)
