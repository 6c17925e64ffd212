"""Runs of one seed in a sweep: other variants, but the same data in the same order and the same beginning."""

from pathlib import Path

import torch

from tests.run.tiny import TINY
from triform.run.job import checked
from triform.run.parts import Parts, parts
from triform.sweeps.compose import config_of
from triform.sweeps.samplers import sampler, split


def test_variants_of_one_seed_see_the_same_rows_and_share_what_they_begin_with(tmp_path: Path) -> None:
    words = [*TINY, f"paths.outputs={tmp_path}", "model=decoder", "model/position=rotary,learned", "seed=0,1"]
    fixed, swept = split(words)
    grid = sampler({"sampler": "grid", "file": None}, swept)
    grid.begin([])
    found: dict[str, Parts] = {}
    weights: dict[str, dict[str, torch.Tensor]] = {}
    while (varied := grid.ask(len(found))) is not None:
        config = config_of([*fixed, *varied])
        made = parts(config, checked(config))
        model = made.model_factory()
        model.initialise(config["seed"])
        name = " ".join(varied)
        found[name], weights[name] = made, {key: value.clone() for key, value in model.state_dict().items()}
    assert len(found) == 4
    order = {name: [made.data.order.batch(n)[1].tolist() for n in range(6)] for name, made in found.items()}
    for seed in (0, 1):
        two, one = (f"model/position={position} seed={seed}" for position in ("rotary", "learned"))
        assert order[two] == order[one]
        shared = [
            key
            for key in weights[two].keys() & weights[one].keys()
            if weights[two][key].shape == weights[one][key].shape and weights[two][key].std() > 0
        ]
        assert any("attention" in key for key in shared)
        assert [key for key in shared if not torch.equal(weights[two][key], weights[one][key])] == []
    assert order["model/position=rotary seed=0"] != order["model/position=rotary seed=1"]
