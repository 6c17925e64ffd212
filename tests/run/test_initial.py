"""Training that begins with weights of a folder or a run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForPreTraining, LlamaConfig, LlamaForCausalLM

import triform
from triform.commands import main
from triform.data.tokenizers import Byte
from triform.run.cli import main as train
from triform.run.compose import compose
from triform.run.initial import expanded, fill
from triform.run.parts import model_factory, origin

TEXT = "the cat sat on the mat, and the dog did not.\n" * 40
QUICK = ("logger=csv", "trainer.max_steps=2", "trainer.val_interval=2", "data.seq_len=16", "data.batch_size=4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaMA as `transformers` saves it, its table padded beyond the 263 tokens of the tokenizer."""
    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=270, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    Byte().train(iter(())).save(path)
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def run(folder: Path, *overrides: str) -> Path:
    """A run to its end; its folder."""
    assert train([*QUICK, f"paths.outputs={folder}", *overrides]) == 0
    (config,) = folder.glob("*/*/config.yaml")
    return config.parent


@pytest.mark.parametrize("name", ["mö del, x=1", "it's", "[a] {b} (c)"])
@pytest.mark.parametrize("quote", ["", "'"])
def test_a_folder_of_any_name(folder: Path, tmp_path: Path, name: str, quote: str) -> None:
    model = shutil.copytree(folder, tmp_path / name)
    config = compose(expanded(["model=from_pretrained", f"model.path={quote}{model}{quote}"]))
    assert (config["model"]["path"], config["tokenizer"]["path"]) == (str(model), str(model))


def test_a_recipe_may_begin_with_a_trained_model(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    recipe = tmp_path / "experiment" / "tuned.yaml"
    recipe.write_text("# @package _global_\ndefaults:\n  - override /model: from_pretrained\nseed: 7\n")
    words = ["experiment=tuned", f"model.path={folder}", "data=text", "task=causal_lm"]
    assert compose(words, [tmp_path]) == compose(["model=from_pretrained", *words], [tmp_path])
    config = compose(["experiment=tuned", "model=decoder"], [tmp_path])
    assert (config["seed"], config["model"].get("path")) == (7, None), "what is typed wins"
    with pytest.raises(ValueError, match=r"needs the folder of the model; write model.path=FOLDER"):
        compose(["experiment=tuned"], [tmp_path])


def test_a_folder_that_has_gone_is_named(folder: Path, text: Path, tmp_path: Path) -> None:
    """Not a tokenizer that has changed: so a run that is resumed without it says what to put back."""
    model = shutil.copytree(folder, tmp_path / "model")
    config = compose(
        expanded(["model=from_pretrained", f"model.path={model}", "data=text", f"data.train_files={text}"])
    )
    before = origin(config)
    model.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=r"tokenizer.path=.*/model is not there any more; put it back"):
        origin(config)
    (tmp_path / "moved").rename(model)
    assert origin(config) == before


def test_the_first_step_sees_the_weights_of_the_folder(folder: Path, text: Path, tmp_path: Path) -> None:
    start = ("model=from_pretrained", f"model.path={folder}", "data=text", f"data.train_files={text}")
    trained = run(tmp_path, *start, "optimizer.lr=0.0", "optimizer.weight_decay=0.0")
    before, tokenizer = triform.from_pretrained(folder)
    after, same = triform.load(trained)
    assert tokenizer is not None
    assert same.encode("mat") == tokenizer.encode("mat")
    assert {name: value.tolist() for name, value in after.named_parameters()} == {
        name: value.tolist() for name, value in before.named_parameters()
    }
    ids = torch.tensor([tokenizer.encode("the cat")])
    assert after(ids).logits.shape[-1] == 263  # rows that pad the table are never produced


def test_a_run_is_exported_read_and_trained_on(folder: Path, text: Path, tmp_path: Path, capfd: Any) -> None:
    start = ("model=from_pretrained", f"model.path={folder}", "data=text", f"data.train_files={text}")
    first = run(tmp_path / "first", *start, "optimizer.lr=0.01")
    assert main(["export", str(first), str(tmp_path / "exported")]) == 0
    assert "transformers.LlamaForCausalLM.from_pretrained" in capfd.readouterr().out
    ours, tokenizer = triform.load(first)
    ids = torch.tensor([tokenizer.encode("the cat")])
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "exported").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits[..., :263], ours(ids).logits, rtol=0, atol=1e-5)
    assert main(["export", str(first), str(tmp_path / "exported")]) == 2
    assert "exists; name a new folder" in capfd.readouterr().err
    again = ("model=from_pretrained", f"model.path={first}", "data=text", f"data.train_files={text}")
    second = run(tmp_path / "second", *again, "optimizer.lr=0.0", "optimizer.weight_decay=0.0")
    for name, value in triform.load(second)[0].named_parameters():
        assert torch.equal(value, ours.get_parameter(name)), name


def test_a_new_head_begins_random_and_is_named(folder: Path, tmp_path: Path, capfd: Any) -> None:
    table = tmp_path / "labels.tsv"
    table.write_text("".join(f"{word} {i}\t{word}\n" for i in range(20) for word in ("yes", "no")), encoding="utf-8")
    start = ("model=from_pretrained", f"model.path={folder}", "data=labelled", f"data.train_files={table}")
    trained = run(tmp_path / "runs", *start, "optimizer.lr=0.0", "optimizer.weight_decay=0.0")
    said = capfd.readouterr().err
    (line,) = [line for line in said.splitlines() if "new and random" in line]
    named = set(line.partition("new and random: ")[2].split(", "))
    before, after = triform.from_pretrained(folder)[0], triform.load(trained)[0]
    assert named == {name for name, _ in after.named_parameters() if name.startswith("head.")}
    for name, value in before.named_parameters():
        assert torch.equal(value, after.get_parameter(name)), name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.n_layers=1"], "has stack.layers.1.attention.q_proj.weight, which this model has not"),
        (
            ["model.d_ff=48"],
            r"has stack.layers.0.feed_forward.gate_proj.weight of shape \[40, 24\], the model has",
        ),
        (["model.n_layers=3"], "has no stack.layers.2.attention.q_proj.weight"),
        (["tokenizer=char"], r"tokenizer: .+ is token \d+ of model\.path=.* and (none|token \d+) here, .* along"),
    ],
)
def test_other_sizes_are_refused_before_anything_is_written(
    folder: Path, text: Path, tmp_path: Path, capsys: Any, overrides: list[str], message: str
) -> None:
    start = ["model=from_pretrained", f"model.path={folder}", "data=text", f"data.train_files={text}", *QUICK]
    assert train([*start, *overrides, f"paths.outputs={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    with pytest.raises(ValueError, match=message):
        raise ValueError(error)
    assert not list(tmp_path.glob("*/*/config.yaml"))


def test_a_folder_without_a_tokenizer_asks_for_one(folder: Path, tmp_path: Path, capsys: Any) -> None:
    model, _ = triform.from_pretrained(folder)
    assert triform.save_pretrained(model, tmp_path / "bare") == "LlamaForCausalLM"
    with pytest.raises(ValueError, match=r"has no tokenizer.json.*tokenizer=pretrained tokenizer.path=FOLDER"):
        compose(["model=from_pretrained", f"model.path={tmp_path / 'bare'}", "data=text"])
    with pytest.raises(ValueError, match=r"needs the folder of the model; write model\.path=FOLDER"):
        compose(["model=from_pretrained", "data=text"])


def test_a_larger_vocabulary_keeps_the_old_rows(folder: Path) -> None:
    config = compose(["model=from_pretrained", f"model.path={folder}", "data=text", "model.vocab_size=300"])
    with torch.device("meta"):
        model = model_factory({**config, "trust": []}, 300)()
    model.to_empty(device="cpu").initialise(0)
    random = model.embedding.table.weight.detach().clone()
    fill(model, str(folder))
    old = triform.from_pretrained(folder)[0].embedding.table.weight
    assert torch.equal(model.embedding.table.weight[:270], old)
    assert torch.equal(model.embedding.table.weight[270:], random[270:])
    assert model.head.weight is model.embedding.table.weight


def test_of_two_heads_the_one_that_predicts_tokens_comes_along(tmp_path: Path) -> None:
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4}
    BertForPreTraining(BertConfig(vocab_size=270, max_position_embeddings=32, **sizes)).save_pretrained(tmp_path)
    Byte().train(iter(())).save(tmp_path)
    before, _ = triform.from_pretrained(tmp_path)
    config = compose(["model=from_pretrained", f"model.path={tmp_path}", "data=text", "task=masked_lm"])
    model = model_factory(config, 270)()
    model.initialise(0)
    fill(model, str(tmp_path))
    assert all(
        torch.equal(value, model.head.get_parameter(name)) for name, value in before.head.main.named_parameters()
    )
    assert {name for name, _ in model.head.named_parameters()} == {
        name for name, _ in before.head.main.named_parameters()
    }


def test_low_rank_adaptation_learns_beside_the_weights_and_is_merged(
    folder: Path, text: Path, tmp_path: Path, capfd: Any
) -> None:
    start = ("model=from_pretrained", f"model.path={folder}", "data=text", f"data.train_files={text}")
    trained = run(tmp_path / "runs", *start, "model/adapter=lora", "model.adapter.rank=2", "optimizer.lr=0.05")
    assert "beside 4 projections low-rank ones" in capfd.readouterr().err
    ours, tokenizer = triform.load(trained)
    before, _ = triform.from_pretrained(folder)
    for name, value in before.named_parameters():
        assert torch.equal(ours.get_parameter(name), value), name
    ids = torch.tensor([tokenizer.encode("the cat")])
    assert not torch.allclose(ours(ids).logits, before(ids).logits[..., :263], atol=1e-4)
    assert triform.save_pretrained(ours, tmp_path / "merged") == "LlamaForCausalLM"
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits[..., :263], ours(ids).logits, rtol=0, atol=1e-5)


def test_the_rows_of_sentinels_are_left_out_where_a_task_has_none(
    text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = ("data=text", f"data.train_files={text}", "tokenizer=char", "model=decoder", "task=span_corruption")
    before = run(tmp_path / "a", *own, "task.n_sentinels=9", "model.n_layers=1", "model.d_model=24", "model.n_heads=3")
    start = ("model=from_pretrained", f"model.path={before}", "data=text", f"data.train_files={text}", "task=causal_lm")
    capfd.readouterr()
    after = run(tmp_path / "b", *start, "optimizer.lr=0.0", "optimizer.weight_decay=0.0")
    said = capfd.readouterr().err
    assert "without their last rows, for marks that this task has not: embedding.table.weight" in said
    (old, _), (new, tokenizer) = triform.load(before), triform.load(after)
    rows = old.embedding.table.weight
    assert len(rows) == tokenizer.vocab_size + 9
    assert new.embedding.table.weight.equal(rows[:-9])
