"""Source and target with a vocabulary each, from the files to what a run writes."""

import json
from pathlib import Path

import pytest
import torch

import triform
from triform.commands import main
from triform.data.prepare import prepare
from triform.data.sources.pairs import PairFiles
from triform.data.tokenizers import BPE, Char, Separate, Tokenizer, Word
from triform.run.cli import main as train
from triform.run.compose import compose
from triform.run.parts import model_factory
from triform.run.relations import check_separate
from triform.tasks.source_target import SourceTarget

PAIRS = [("ab cd", "xyz"), ("b a", "zzyx"), ("dcba", "x")]


def test_each_side_is_read_by_its_own(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    source = PairFiles(str(path), str(path), None, 0.1, "utf-8", "source", "target")
    prepared = prepare(source, Separate(Char(), Char()), tmp_path / "cache", progress=False)
    tokenizer = prepared.tokenizer
    assert tokenizer.is_separate
    assert set(tokenizer.source.backend.get_vocab()) - set(tokenizer.backend.get_vocab()) == set("abcd ")
    assert tokenizer.vocab_size == 7 + len("xyz")
    first = prepared.splits["train"][0]
    assert tokenizer.source.decode(first["source_ids"]) == "ab cd"
    assert tokenizer.decode(first["target_ids"]) == "xyz"
    assert prepared.unknown == {"train": 0, "validation": 0}
    joint = prepare(source, Char(), tmp_path / "cache", progress=False)
    assert not joint.tokenizer.is_separate
    assert joint.folder != prepared.folder


def test_sides_may_differ_in_kind_and_are_saved_together(tmp_path: Path) -> None:
    recipe = Separate(source=Char(), target=Word(20, lowercase=False, split_punctuation=False))
    tokenizer = recipe.train_apart(iter(["hello"]), iter(["HH AH0 L OW1"]))
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.source.encode("hello") == tokenizer.source.encode("hello")
    assert again.encode("L OW1") == tokenizer.encode("L OW1")
    assert (again.source.vocab_size, again.vocab_size) == (7 + 4, 7 + 4)
    assert not again.source.is_separate


def test_one_of_them_may_want_all_of_the_text() -> None:
    assert Separate(BPE(263, lowercase=False), Char()).everything
    assert not Separate(BPE(263, lowercase=False), BPE(263, lowercase=False)).everything


def test_a_decoder_has_one_table() -> None:
    tokenizer = Separate(Char(), Char()).train(iter(["ab"]))
    with pytest.raises(ValueError, match=r"one table of tokens, .* each; set tokenizer\.separate=false or model=enc"):
        SourceTarget("decoder", tokenizer, both_ways=False)


QUICK = (
    *("logger=csv", "data=pairs", "model.d_model=24", "model.n_heads=3", "model.d_ff=40", "model.n_layers=1"),
    *("data.seq_len=16", "data.batch_size=4", "trainer.max_steps=3", "trainer.val_interval=3", "tokenizer=char"),
)


def test_a_run_with_two_vocabularies(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in PAIRS * 8), encoding="utf-8")
    data = (f"data.train_files={path}", f"data.validation_files={path}", f"paths.outputs={tmp_path / 'out'}")
    assert train([*QUICK, *data, "model=encoder_decoder", "tokenizer.separate=true"]) == 0
    (config,) = (tmp_path / "out").glob("*/*/config.yaml")
    model, tokenizer = triform.load(config.parent)
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.is_separate
    assert model.get_parameter("source_embedding.table.weight").shape == (tokenizer.source.vocab_size, 24)
    assert model.get_parameter("embedding.table.weight").shape == (tokenizer.vocab_size, 24)
    summary = json.loads((config.parent / "summary.json").read_text())
    assert summary["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    source = torch.tensor([tokenizer.source.encode("dcba")])
    assert int(source.max()) >= tokenizer.vocab_size  # which the target's table would not hold
    out = triform.generate(model, source, max_new_tokens=3, start_id=tokenizer.start_id)
    assert int(out.max()) < tokenizer.vocab_size
    capfd.readouterr()
    assert main(["generate", str(config.parent), "--prompt", "dcba"]) == 0
    assert set(capfd.readouterr().out) <= set("xyz\n")
    assert main(["export", str(config.parent), str(tmp_path / "exported")]) == 0
    exported, again = triform.from_pretrained(tmp_path / "exported")
    assert again is not None
    assert again.source.encode("dcba") == tokenizer.source.encode("dcba")
    target = torch.tensor([[tokenizer.start_id, 8]])
    torch.testing.assert_close(exported(source, target).logits, model(source, target).logits)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model=decoder",), "needs model=encoder_decoder, not a decoder; set tokenizer.separate=false"),
        (("data=text", "model=decoder"), "needs pairs, not data of kind text; set tokenizer.separate=false"),
    ],
    ids=["one table", "no sides"],
)
def test_two_vocabularies_need_two_sides_and_tables(
    overrides: tuple[str, ...], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\na\tb\n", encoding="utf-8")
    data = (
        f"data.train_files={path}",
        f"data.validation_files={path}",
        f"paths.outputs={tmp_path / 'out'}",
        "tokenizer.separate=true",
    )
    assert train([*QUICK[:1], "data=pairs", "tokenizer=char", *data, *overrides]) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_two_recipes_need_two_sides_as_well() -> None:
    node = {"_target_": "triform.data.tokenizers.Separate"}
    check_separate(node, "pairs", "encoder_decoder")
    with pytest.raises(ValueError, match=r"needs pairs, not data of kind text; .* or choose another tokenizer"):
        check_separate(node, "text", "encoder_decoder")
    with pytest.raises(ValueError, match=r"tokenizer\.separate=2 is not true or false"):
        check_separate({**node, "separate": 2}, "pairs", "encoder_decoder")


def test_the_encoder_alone_reads_its_table() -> None:
    """Another source table changes what is remembered of the source; the target's stays tied to the head."""
    config = compose([*QUICK, "model=encoder_decoder", "experiment=none", "data=dates", "trainer.max_steps=1"])
    model = model_factory(config, 9, {"n_source_tokens": 13})().eval()
    model.initialise(0)
    joint = model_factory(config, 9)().eval()
    joint.initialise(0)
    source, target = torch.tensor([[7, 5, 8]]), torch.tensor([[2, 8, 3, 1]])
    with torch.no_grad():
        model.get_parameter("source_embedding.table.weight")[:9] = joint.get_parameter("embedding.table.weight")
        torch.testing.assert_close(model(source, target).logits, joint(source, target).logits, rtol=0, atol=0)
        model.get_parameter("source_embedding.table.weight").mul_(2)
        assert not torch.equal(model.encode(source), joint.encode(source))
        memory = joint.encode(source)
        torch.testing.assert_close(
            model.decode(target, memory).logits, joint.decode(target, memory).logits, rtol=0, atol=0
        )
    assert model(torch.tensor([[12]]), target).logits.shape[-1] == 9
