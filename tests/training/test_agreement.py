import json
from pathlib import Path

import torch

from tests.training.runs import make
from triform.run.folder import RunFolder
from triform.run.job import rank_main
from triform.run.ranks import launch
from triform.training.agreement import digest


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


def test_a_digest_tells_the_last_bit() -> None:
    layer = torch.nn.Linear(3, 2)
    before = digest(layer)
    assert digest(layer) == before
    with torch.no_grad():
        layer.weight[1, 1] = torch.nextafter(layer.weight[1, 1], torch.tensor(9.0))
    assert digest(layer) != before
