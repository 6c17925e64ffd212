from pathlib import Path
from typing import Any

import pytest

from triform.run.compose import compose
from triform.run.help import groups, page
from triform.run.recipe import with_recipe


@pytest.mark.parametrize(
    ("typed", "model", "task", "tokenizer"),
    [
        ([], "EncoderDecoder", "Seq2Seq", "Char"),
        (["data=text"], "Decoder", "CausalLM", "BPE"),
        (["data=pairs"], "EncoderDecoder", "Seq2Seq", "BPE"),
        (["data=labelled"], "Encoder", "Classification", "BPE"),
        (["data=text", "tokenizer=char"], "Decoder", "CausalLM", "Char"),
        (["data=text", "task=masked_lm", "model=encoder"], "Encoder", "MaskedLM", "BPE"),
        (["experiment=stdlib"], "Decoder", "CausalLM", "BPE"),
        (["experiment=stdlib_docs"], "Encoder", "MaskedLM", "BPE"),
        (["experiment=stdlib_modules", "model=decoder"], "Decoder", "Classification", "BPE"),
    ],
)
def test_data_brings_its_recipe_and_the_command_line_wins(
    typed: list[str], model: str, task: str, tokenizer: str
) -> None:
    config = compose(typed)
    names = [config[group]["_target_"].rpartition(".")[2] for group in ("model", "task", "tokenizer")]
    assert names == [model, task, tokenizer]


def test_the_default_is_its_own_recipe() -> None:
    assert compose([]) == compose(["experiment=dates"]) == compose(["data=dates"])
    assert compose(["data=stdlib"]) == compose(["experiment=stdlib"])


def test_a_value_on_the_command_line_wins_over_the_recipe() -> None:
    assert compose(["trainer.max_epochs=1"])["trainer"]["max_epochs"] == 1
    assert compose(["optimizer.lr=0.7"])["optimizer"]["lr"] == 0.7


def test_a_data_set_without_a_recipe_takes_none(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_text("defaults: [text]\ntrain_files: mine.txt\n")
    assert with_recipe(["data=mine"], [tmp_path]) == ["data=mine", "experiment=none"]
    config = compose(["data=mine", "model=decoder", "task=causal_lm"], [tmp_path])
    assert config["data"]["train_files"] == "mine.txt"
    assert config["name"] == "mine"
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 7\n")
    assert compose(["data=mine"], [tmp_path])["seed"] == 7


def test_a_recipes_values_go_with_the_class_they_are_for() -> None:
    recipe, bare = compose([]), compose(["experiment=none"])
    assert recipe["optimizer"] != bare["optimizer"], "else this test shows nothing"
    muon = compose(["optimizer=muon"])
    assert muon["optimizer"] == compose(["experiment=none", "optimizer=muon"])["optimizer"]
    assert muon["scheduler"] == bare["scheduler"]
    cosine = compose(["scheduler=cosine"])
    assert cosine["optimizer"] == bare["optimizer"]
    assert compose(["scheduler=cosine", "optimizer.lr=0.3"])["optimizer"]["lr"] == 0.3
    assert compose(["scheduler=noam", "optimizer=adamw"]) == recipe
    assert cosine["trainer"] == recipe["trainer"]


def test_a_class_of_ones_own_gets_no_keys_of_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "mine.yaml").write_text("_target_: own_package.Mine\nlevel: 0.5\n")
    config = compose(["scheduler=mine"], [tmp_path])
    assert config["scheduler"] == {"_target_": "own_package.Mine", "level": 0.5}


def test_the_config_is_plain_and_has_no_trace_of_hydra() -> None:
    config = compose([])
    assert "hydra" not in config
    assert type(config["model"]) is dict
    assert "${" not in str(config)


def test_parts_go_to_one_stack_or_to_all() -> None:
    shared = compose(["model/attention=sliding_window"])["model"]
    assert "window" in shared["attention"]
    one = compose(["model/attention@model.decoder.cross_attention=grouped_query"])["model"]
    assert one["decoder"]["cross_attention"] is not None
    assert one["encoder"].get("attention") is None


def test_every_group_has_a_page() -> None:
    for group, options in groups().items():
        text = page(group)
        assert all(f"{group}={option}" in text for option in options)
    assert "label_smoothing" in page("task=seq2seq")
    assert "theta" in page("model/position/rotary")


@pytest.mark.parametrize(
    ("typed", "part", "expected"),
    [
        # GPT-2's attention has biases, which alternating layers have each for itself.
        (["model=gpt2_tiny", "model/attention=grouped_query"], "attention", {"bias": True, "weights_dropout": 0.1}),
        (["model=gpt2_tiny", "model/attention=alternate"], "attention", {"bias": None, "every": 3}),
        # LLaMA 3.2 sets a key of the scaling, which plain rotary positions have not, nor ALiBi any.
        (["model=llama_tiny", "model/position=rotary"], "position", {"scaling": None, "theta": 10000.0}),
        (["model=llama_tiny", "model/position=alibi"], "position", {"scaling": None, "theta": None}),
        (["model=llama_tiny", "model/norm@model.embedding_norm=layer"], "embedding_norm", {"bias": True}),
        (["model=llama_tiny", "model/norm=layer"], "norm", {"eps": 1e-5, "bias": True}),
        (["model=qwen2_tiny", "model/position=sinusoidal"], "position", {"theta": None}),
        (["model=qwen2_tiny", "model/position=rotary", "model.position.theta=7"], "position", {"theta": 7}),
    ],
)
def test_what_a_model_sets_for_a_part_goes_with_it(typed: list[str], part: str, expected: dict[str, Any]) -> None:
    node = compose(["experiment=none", *typed])["model"][part]
    assert {key: node.get(key) for key in expected} == expected
    assert compose(with_recipe(["experiment=none", *typed])) == compose(["experiment=none", *typed])
