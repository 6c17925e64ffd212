import importlib
import pkgutil
from collections.abc import Iterator
from functools import partial
from types import ModuleType

import pytest
from torch import nn

import triform
from tests.models.composed import settings
from triform.run.build import OURS, build, locate


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
        "triform.training.environment.git",
        "triform.training.environment._run",
        "triform.training.checkpoints.link",
        "triform.training.fit.random.Random",
        "triform.data.prepare.shutil.rmtree",
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
        "torch.nn.init.normal_",
        "torch.nn.parallel.distributed.functools.partial",
        "torch.optim.swa_utils.AveragedModel",
        "triform.data.sources.files.hashlib.file_digest",
        "triform.data.sources.files.read_text",
        "triform.data.tokenizers.Tokenizer.load",
        "triform.layers.attention.nn.Linear",
        "triform.layers.attention",
        "triform.training.loggers.wandb_id",
        "triform.training.optimizers.Callable",
        "lightning.pytorch.loggers.wandb.os.system",
    ],
)
def test_no_attribute_path_leads_to_anything_but_a_part(target: str) -> None:
    with pytest.raises(ValueError, match="is not a class that a config may name"):
        build({"_target_": target})


@pytest.mark.parametrize("target", ["torch.nn.modules.module._addindent", "triform.layers._x.Y", "torch.nn.__class__"])
def test_private_names_are_refused(target: str) -> None:
    with pytest.raises(ValueError, match="outside what a config may name"):
        build({"_target_": target})


def test_of_all_that_triform_defines_only_parts_can_be_named() -> None:
    """Every callable of every module by every name it has there, private ones too, and those of its classes."""
    named = {
        target
        for module in modules()
        for name, value in vars(module).items()
        for target in (f"{module.__name__}.{name}", *(f"{module.__name__}.{name}.{inner}" for inner in members(value)))
        if callable(value) and is_named(target)
    }
    functions = {target for target in named if not isinstance(locate(target), type)}
    assert functions == {
        *(f"triform.training.optimizers.{name}" for name in ("adafactor", "adamw", "lion", "muon", "schedule_free")),
        *(f"triform.training.averages.{name}" for name in ("ema", "latest")),
        *(f"triform.training.loggers.{name}" for name in ("tensorboard_logger", "wandb_logger")),
    }
    classes = {target for target in named if isinstance(locate(target), type)}
    assert all(target.startswith(OURS) for target in classes)
    assert all(target == f"{locate(target).__module__}.{locate(target).__qualname__}" for target in classes)


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(triform.__path__, "triform."):
        yield importlib.import_module(found.name)


def members(value: object) -> list[str]:
    return list(vars(value)) if isinstance(value, type) else []


def is_named(target: str) -> bool:
    try:
        return locate(target) is not None
    except ValueError:
        return False


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


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        (
            "decoder",
            ["model/attention=alternate", "model.attention.local.window=0"],
            r"Attention: window=0 .* set model\.attention\.local\.window to",
        ),
        (
            "encoder_decoder",
            ["model/attention@model.encoder.attention=sliding_window", "model.encoder.attention.window=-2"],
            r"Attention: window=-2 .* set model\.encoder\.attention\.window to",
        ),
        (
            "encoder_decoder",
            ["model/attention@model.decoder.cross_attention=multi_head", "model.decoder.cross_attention.softcap=0"],
            r"Attention: softcap=0 .* set model\.decoder\.cross_attention\.softcap above",
        ),
        (
            "encoder_decoder",
            ["model/norm@model.encoder.norm=rms", "model.encoder.norm.cast=x"],
            r"RMSNorm: cast='x' .* set model\.encoder\.norm\.cast to",
        ),
        (
            "decoder",
            ["model/feed_forward=mixture", "model.feed_forward.expert.dropout=2"],
            r"dropout=2 .* set model\.feed_forward\.expert\.dropout to",
        ),
        ("decoder", ["model.attention.window=0"], r"set model\.attention\.window to"),
        ("encoder_decoder", ["model.encoder.n_heads=5"], r"set model\.encoder\.n_heads to .* or set model\.head_dim"),
        ("encoder_decoder", ["model.n_heads=5"], r"set model\.n_heads to"),
    ],
)
def test_a_refusal_names_the_key_where_the_part_stands(family: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(settings(family, *overrides), key="model")(vocab_size=11)
