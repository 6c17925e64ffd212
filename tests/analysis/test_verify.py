import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from triform.analysis import verify
from triform.analysis.bands import Made, read_record
from triform.analysis.verify import Ran, record, record_file, recorded
from triform.run.errors import BadInput


def test_what_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"datse: no such recipe \(did you mean 'dates'"):
        record_file("datse")


def test_every_record_lies_beside_its_recipe_and_names_no_file() -> None:
    for name in recorded():
        file = record_file(name)
        record = read_record(file)
        assert len(record.seeds) >= 3
        assert all(len(values) == len(record.seeds) for points in record.curves.values() for values in points.values())
        assert "/" not in json.dumps([record.overrides, record.made.config.get("data.train_files")])


def test_of_seeds_that_stop_at_other_steps_what_all_have_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").touch()
    made = Made({}, None, 1, {}, {})

    def ran(lasts: Sequence[int]) -> None:
        runs = iter([Ran(i, {"train/loss": {2: 1.5 + i, last: 0.5 + i}}, made) for i, last in enumerate(lasts)])
        monkeypatch.setattr(verify, "_run", lambda *_: next(runs))

    ran([4, 6, 4])
    record("mine", ["trainer.max_steps=6"], [tmp_path], 3)
    assert read_record(tmp_path / "experiment" / "mine.json").curves == {"train/loss": {2: [1.5, 2.5, 3.5]}}
    monkeypatch.setattr(verify, "_run", lambda *_: Ran(0, {"train/loss": {}}, made))
    with pytest.raises(BadInput, match="no point of a curve in common"):
        record("mine", ["trainer.max_steps=6"], [tmp_path], 3)
