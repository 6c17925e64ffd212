"""Numbers of ranks and of jobs."""

from triform.training.spans import spans


def test_numbers_that_follow_each_other_are_one_span() -> None:
    assert spans([7, 0, 1, 2, 9, 10]) == "0-2, 7, 9-10"
    assert spans([0, 2, 3, 4, 9], ",") == "0,2-4,9", "as sbatch writes them"
    assert spans([0]) == "0"
    assert spans([]) == ""
