import json
import re
from pathlib import Path

import torch

from tests.training.runs import make
from triform.run.folder import RunFolder
from triform.run.job import rank_main
from triform.run.ranks import launch
from triform.training.agreement import code, content, different, digest


def test_ranks_that_differ_stop_before_the_first_step(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder", "trainer.devices=2")
    assert launch(2, _rank_with_settings_of_its_own, (folder,)) == 1
    summary = json.loads(folder.summary.read_text())
    assert summary["status"] == "failed"
    assert "the ranks differ in" in summary["error"]
    assert not list(folder.checkpoints.iterdir())


def _rank_with_settings_of_its_own(folder: RunFolder) -> int:
    """One rank in another version of the library, say: its settings are not those of the first."""
    from triform.training.agreement import Agreement
    from triform.training.hardware import rank

    torch.set_num_threads(1)
    original = Agreement.__init__

    def other(self: Agreement, facts: dict[str, str]) -> None:
        original(self, dict(facts) | {"settings": f"those of rank {rank()}"})

    Agreement.__init__ = other  # type: ignore[method-assign,assignment]
    return rank_main(folder, False)


def test_what_differs_is_told_with_the_ranks() -> None:
    facts = [
        {"code": "a", "data": "x"},
        {"code": "a", "data": "y"},
        {"code": "b", "data": "y"},
        {"code": "a", "data": "y"},
    ]
    assert different(facts) == "code (a on rank 0-1, 3, b on rank 2), data (y on rank 1-3, x on rank 0)"
    assert different(facts[1:2] * 3) == ""


def test_the_code_is_known_by_its_files(tmp_path: Path) -> None:
    assert re.fullmatch("[0-9a-f]{16}", code())
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    before = content(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("seed: 2\n")
    assert content(tmp_path / "config.yaml") != before


def test_a_digest_tells_the_last_bit() -> None:
    layer = torch.nn.Linear(3, 2)
    before = digest(layer)
    assert digest(layer) == before
    with torch.no_grad():
        layer.weight[1, 1] = torch.nextafter(layer.weight[1, 1], torch.tensor(9.0))
    assert digest(layer) != before
