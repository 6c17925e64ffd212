"""One run: compose its config, check it, give it a folder, start its ranks."""


def main(arguments: list[str] | None = None) -> int:
    """Do what `python train.py ARGUMENTS` says (default: this process's own) and return the exit code.

    0 finished, 1 failed, 2 bad input, 75 preempted.
    """
    from triform.run.cli import main

    return main(arguments)
