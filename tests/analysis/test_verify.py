import json

import pytest

from triform.analysis.bands import read_record
from triform.analysis.verify import record_file, recorded
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
