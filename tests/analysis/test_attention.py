"""What is drawn is what the model computed, for each family, on a page that needs nothing else."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.runs import make
from triform.analysis.attention import Maps, attention_maps, page
from triform.commands import main
from triform.layers.attention import capture_weights
from triform.run.job import rank_main
from triform.run.load import Loaded, open_run
from triform.run.ranks import start_all


def trained(folder: Path, family: str) -> Loaded:
    run = make(folder, family, "trainer.max_steps=1", "trainer.val_interval=1")
    assert start_all([{}], rank_main, (run, False)) == 0
    return open_run(run.path)


@pytest.fixture(scope="module")
def two_stacks(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return trained(tmp_path_factory.mktemp("pairs"), "encoder_decoder")


def test_one_stack_of_each_family(tmp_path: Path) -> None:
    for family in ("encoder", "decoder"):
        (tmp_path / family).mkdir()
        loaded = trained(tmp_path / family, family)
        [found] = attention_maps(loaded, "a def", None)
        expected = ["[CLS]", "a", "\u2423", "d", "e", "f", "[SEP]"][: None if family == "encoder" else 6]
        assert found.queries == found.keys == (expected if family == "encoder" else expected[1:])
        n = len(found.keys)
        assert found.weights.shape == (2, 2, n, n)
        np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-6)
        assert (np.triu(found.weights[0, 0], 1) == 0).all() == (family == "decoder")
    with pytest.raises(ValueError, match="--source, --target: 90 tokens in a row are more than the 40"):
        attention_maps(loaded, "a" * 90, None)


def test_an_encoder_refuses_a_target(tmp_path: Path, two_stacks: Loaded) -> None:
    loaded = Loaded(two_stacks.folder, two_stacks.config, two_stacks.tokenizer, two_stacks.objective, torch.nn.Module())
    loaded.model.family = "encoder"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="--target: an encoder reads one text"):
        attention_maps(loaded, "a", "b")


def test_the_cross_attention_is_of_the_target(two_stacks: Loaded) -> None:
    maps = {one.name: one for one in attention_maps(two_stacks, "a def", "re")}
    assert list(maps) == ["encoder", "decoder", "cross"]
    assert maps["cross"].queries == ["[BOS]", "r", "e"]
    assert maps["cross"].keys == ["a", "\u2423", "d", "e", "f", "[EOS]"]
    tokens = two_stacks.tokenizer
    inputs = [[*tokens.encode("a def"), tokens.eos_id]], [[tokens.start_id, *tokens.encode("re")]]
    with torch.inference_mode(), capture_weights(two_stacks.model) as captured:
        two_stacks.model(*map(torch.tensor, inputs))
    cross = [weights[0].numpy() for name, weights in captured.items() if "cross" in name]
    np.testing.assert_array_equal(maps["cross"].weights, np.stack(cross))
    assert maps["encoder"].weights.shape == (2, 2, 6, 6)
    assert maps["decoder"].weights.shape == (2, 2, 3, 3)


def test_a_page_that_stands_alone() -> None:
    weights = np.array([[[[0.25, 0.75]]]], dtype=np.float32)
    html = page([Maps("cross", ["</script>"], ["__TITLE__", "&"], weights)], "<run>")
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(data) == [
        {"name": "cross", "queries": ["</script>"], "keys": ["__TITLE__", "&"], "weights": [[[[0.25, 0.75]]]]}
    ]
    assert "<title>&lt;run></title>" in html
    assert not re.search(r"https?://|<link|src=|@import|url\(", html)


def test_the_command_draws(two_stacks: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(two_stacks.folder.path)
    assert main(["attention", run, "--source", "a $def$", "--out", str(tmp_path / "x")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [Path(line.removeprefix("page: ")).name for line in printed] == [
        *("encoder.png", "decoder.png", "cross.png", "attention.html")
    ]
    with Image.open(tmp_path / "x" / "encoder.png") as picture:
        assert np.asarray(picture.convert("L")).std() > 1
    assert main(["attention", run]) == 2
    assert "--source" in capsys.readouterr().err
