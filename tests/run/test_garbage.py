import gc
from pathlib import Path

import pytest

from triform.run import main
from triform.sweeps.driver import Driver


def test_a_sweep_looks_for_garbage_while_its_jobs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take days."""
    seen: list[bool] = []
    monkeypatch.setattr(Driver, "run", lambda self, again: seen.append(gc.isenabled()))
    main(["-m", "seed=0,1", "data=dates", "tokenizer=char", f"paths.outputs={tmp_path}", f"paths.cache={tmp_path}"])
    assert seen == [True]
