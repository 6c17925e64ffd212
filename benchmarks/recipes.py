"""What each built-in recipe reaches, and how long it takes here.

    python benchmarks/recipes.py [EXPERIMENT ...]

Runs `python train.py experiment=NAME logger=csv` one after the other and prints a table in Markdown.
"""

import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from triform.analysis.finish import baselines
from triform.analysis.runs import Run, read_run
from triform.run.parts import data
from triform.training.environment import environment

FIGURES = {
    "dates": "test/exact_match",
    "stdlib": "validation/bits_per_byte",
    "stdlib_docs": "validation/accuracy",
    "stdlib_modules": "validation/accuracy",
}


def train(experiment: str, outputs: Path) -> Run:
    """Run a recipe as a user would, and read what it left."""
    root = Path(__file__).parent.parent
    command = [sys.executable, "train.py", f"experiment={experiment}", "logger=csv", f"paths.outputs={outputs}"]
    out = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
    return read_run(Path(out.splitlines()[-1].removeprefix("run: ")))


def row(experiment: str, run: Run) -> str:
    """One line of the table."""
    figure = FIGURES[experiment]
    beside = baselines(data({**run.config, "trust": []}), figure.split("/")[0], run.summary["final"])
    others = ", ".join(f"{name} {values[figure]:.3f}" for name, values in beside.items() if figure in values)
    s = run.summary
    return (
        f"| `experiment={experiment}` | {figure} | {s['final'][figure]:.3f} | {others} | "
        f"{s['parameters']:,} | {s['tokens']:,} | {s['seconds']:.0f} |"
    )


def main(experiments: list[str]) -> None:
    hardware = environment(0)["hardware"]
    print(f"{hardware['cpu']}, {hardware['cores']} cores, {platform.system()}; python benchmarks/recipes.py\n")
    print("| recipe | figure | reached | beside | parameters | tokens read | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for experiment in experiments:
            print(row(experiment, train(experiment, Path(folder))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(FIGURES))
