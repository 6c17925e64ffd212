from functools import partial

import pytest
from torch import nn

from triform.run.build import build, locate


def test_nested_parts_are_built_and_partial_ones_are_left_to_their_owner() -> None:
    made = build(
        {
            "_target_": "torch.nn.Sequential",
            "_args_": [
                {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": 5},
                {"_target_": "torch.nn.ReLU"},
            ],
        }
    )
    assert isinstance(made, nn.Sequential)
    assert made[0].weight.shape == (5, 3)
    factory = build({"_target_": "torch.nn.Linear", "_partial_": True, "in_features": 3})
    assert isinstance(factory, partial)
    assert factory(out_features=2) is not factory(out_features=2)


def test_plain_values_stay_plain() -> None:
    config = {"a": [1, {"b": None}], "c": "${oc.env:HOME}"}
    assert build(config) == config, "nothing is interpolated"


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "builtins.eval",
        "subprocess.Popen",
        "torch.load",
        "torch.hub.load",
        "torchx.nn.Linear",
        "torch.nnx.Linear",
        "triform.run.job.run",
        "triform.commands.main",
        "triform.run.folder.create",
        "myproject.Model",
    ],
)
def test_targets_outside_the_allowed_packages_are_refused_before_import(target: str) -> None:
    with pytest.raises(ValueError, match=r"callbacks\.x\._target_=.* is outside what a config may name"):
        build({"x": {"_target_": target}}, key="callbacks")
    with pytest.raises(ValueError, match="outside what a config may name"):
        build({"a": [{"_target_": "torch.nn.ReLU", "inner": {"_target_": target}}]})


@pytest.mark.parametrize(
    "target",
    [
        "torch.nn.modules.module.warnings.warn",
        "triform.training.fit.random.Random",
        "triform.training.environment.subprocess.run",
        "triform.data.prepare.shutil.rmtree",
        "triform.training.fit",
    ],
)
def test_no_attribute_path_leads_out_of_the_allowed_packages(target: str) -> None:
    with pytest.raises(ValueError, match="not a class or function of an allowed package"):
        build({"_target_": target})


@pytest.mark.parametrize("target", [None, 3, "", "a b", "torch.nn.Linear()", "torch..nn"])
def test_what_is_no_name_is_refused(target: object) -> None:
    with pytest.raises(ValueError, match="is not the dotted name of a class"):
        build({"_target_": target})


def test_a_trusted_package_is_built(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_project_xyz.py").write_text("class Part:\n    def __init__(self, n): self.n = n\n")
    monkeypatch.syspath_prepend(folder)
    config = {"_target_": "own_project_xyz.Part", "n": 3}
    with pytest.raises(ValueError, match=r"add trust=\[own_project_xyz\]"):
        build(config)
    assert build(config, trust=["own_project_xyz"]).n == 3


def test_the_nearest_name_is_given() -> None:
    with pytest.raises(ValueError, match=r"has no Linaer \(did you mean 'Linear'\?\)"):
        locate("torch.nn.Linaer")
