import math
from pathlib import Path

import pytest

from triform.run.errors import BadInput
from triform.sweeps.manifest import Job, Manifest
from triform.sweeps.run import widened
from triform.sweeps.samplers import Grid, Interval, Random, Sampler, sampler, split

GRID = {"sampler": "grid"}
RANDOM = {"sampler": "random", "n_jobs": 40, "seed": 3}


def chosen(settings: dict[str, object], *words: str) -> Sampler:
    return sampler(settings, split(words)[1])


def asked(of: Sampler, known: int = 0) -> list[list[str]]:
    found = []
    while (words := of.ask(known + len(found))) is not None:
        found.append(words)
    return found


def test_a_grid_has_every_combination_the_first_key_slowest() -> None:
    grid = chosen(GRID, "a=1,2", "seed=range(3)", "name=x")
    grid.begin([])
    assert asked(grid) == [[f"a={a}", f"seed={seed}"] for a in (1, 2) for seed in (0, 1, 2)]


def test_the_last_override_of_a_key_holds() -> None:
    fixed, swept = split(["a=1", "b=3,4", "a=5,6", "b=7", "~c", "+d=[1,2]"])
    assert fixed == ["b=7", "~c", "+d=[1,2]"]
    assert [override.input_line for override in swept] == ["a=5,6"]


def test_a_wider_grid_adds_to_what_is_known() -> None:
    grid = chosen(GRID, "a=1,2,3", "b=x,y")
    grid.begin([Job(n, [f"a={a}", f"b={b}"], []) for n, (a, b) in enumerate([(1, "x"), (1, "y"), (2, "y")])])
    assert asked(grid, 3) == [["a=2", "b=x"], ["a=3", "b=x"], ["a=3", "b=y"]]


def test_equal_combinations_are_one_job() -> None:
    grid = chosen(GRID, "a=1,1,2")
    grid.begin([])
    assert asked(grid) == [["a=1"], ["a=2"]]


def test_random_jobs_stay_the_same_when_there_are_more() -> None:
    words = ("lr=tag(log,interval(1e-4,1e-1))", "n=int(interval(2,5))", "norm=layer,rms", "p=interval(0,1)")
    few, many = chosen(RANDOM | {"n_jobs": 5}, *words), chosen(RANDOM, *words)
    assert asked(few) == asked(many)[:5]
    drawn = [dict(word.split("=") for word in job) for job in asked(many)]
    assert len({job["lr"] for job in drawn}) == 40
    assert {job["n"] for job in drawn} == {"2", "3", "4", "5"}
    assert {job["norm"] for job in drawn} == {"layer", "rms"}
    assert all(1e-4 <= float(job["lr"]) <= 1e-1 and 0 <= float(job["p"]) <= 1 for job in drawn)
    assert asked(chosen(RANDOM | {"seed": 4}, *words)) != asked(many)


def test_a_logarithmic_range_gives_each_decade_its_share() -> None:
    values = [
        float(job[0].partition("=")[2]) for job in asked(Random({"x": Interval("x", 1e-4, 1, True, False)}, 4000, 0))
    ]
    shares = [sum(10.0**-n <= value < 10.0 ** (1 - n) for value in values) / 4000 for n in (1, 2, 3, 4)]
    assert all(math.isclose(share, 0.25, abs_tol=0.03) for share in shares)


@pytest.mark.parametrize("log", [False, True])
def test_both_ends_of_a_range_of_whole_numbers_are_drawn(log: bool) -> None:
    jobs = asked(Random({"n": Interval("n", 1, 4, log, True)}, 4000, 0))
    counts = [sum(job == [f"n={n}"] for job in jobs) for n in (1, 2, 3, 4)]
    assert sum(counts) == 4000
    if log:
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] > 200
    else:
        assert all(900 < count < 1100 for count in counts)


def test_a_list_is_combined_with_what_else_varies(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text("# two variants\nmodel=encoder 'name=a b'\n\nmodel=decoder # with its own\n")
    jobs = chosen({"sampler": "list", "file": str(file)}, "seed=0,1")
    jobs.begin([])
    assert asked(jobs) == [
        ["model=encoder", "name=a b", "seed=0"],
        ["model=encoder", "name=a b", "seed=1"],
        ["model=decoder", "seed=0"],
        ["model=decoder", "seed=1"],
    ]


@pytest.mark.parametrize(
    ("settings", "words", "message"),
    [
        (GRID, ["a=range(0,0)"], r"a=range\(0,0\): no value; give a at least one"),
        (GRID, ["a=interval(0,1)"], "list some, or choose hydra/sweeper=random"),
        (RANDOM, ["a=interval(1,1)"], r"interval\(1,1\) is empty"),
        (RANDOM, ["a=tag(log,interval(0,1))"], "let it begin above 0"),
        (RANDOM, ["a=tag(lgo,interval(1,2))"], "tag lgo is not known .did you mean 'log'"),
        (RANDOM | {"n_jobs": 0}, ["a=1,2"], "hydra.sweeper.n_jobs=0 is no number of jobs"),
        (RANDOM, [], "no key has a range"),
        ({"sampler": "list", "file": None}, [], "hydra.sweeper.file is not set"),
        ({"sampler": "list", "file": "nothing.txt"}, [], "nothing.txt cannot be read"),
    ],
)
def test_what_holds_no_job_is_refused(settings: dict[str, object], words: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        chosen(settings, *words)


def test_a_line_that_is_no_job_is_named(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text("a=1\nb\n")
    with pytest.raises(BadInput, match=r"jobs.txt:2: b cannot be read as key=value"):
        chosen({"sampler": "list", "file": str(file)})
    file.write_text("# nothing\n")
    with pytest.raises(BadInput, match="holds no job"):
        chosen({"sampler": "list", "file": str(file)})


def test_a_grid_without_axes_is_one_job() -> None:
    grid = Grid([])
    grid.begin([])
    assert asked(grid) == [[]]


def test_values_are_kept_as_they_were_quoted_when_a_grid_is_widened() -> None:
    values = ["'x,y'", "'c d'", "null", "'é'", "'it\\'s'", "'k=v'", "[1,2]", "{p:1}", '"d,q"', "''", "0.001", "True"]
    words = [f"a={','.join(values)}", "b=range(1)", "c=1,1"]
    settings = {"sampler": "grid", "file": None}
    grid = sampler(settings, split(words)[1])
    grid.begin([])
    jobs: list[Job] = []
    while (job := grid.job(len(jobs), [])) is not None:
        jobs.append(job)
    assert [job.varied for job in jobs] == [[f"a={value}", "b=0", "c=1"] for value in values], "c=1 is one value"
    manifest = Manifest(words, "", [], settings, {}, {}, jobs)
    wider = widened(manifest, ["a='n e w'"], 0)
    wider.begin(jobs)
    assert wider.ask(len(jobs)) == ["a='n e w'", "b=0", "c=1"]
    assert wider.ask(len(jobs) + 1) is None


def test_a_value_that_cannot_be_read_is_named() -> None:
    with pytest.raises(BadInput, match=r"^a=\(1: cannot be read as key=value; quote the value: 'a=\"\(1\"'$"):
        split(["seed=0", "a=(1"])
