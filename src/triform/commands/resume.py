"""`triform resume RUN`."""

from triform.commands.parser import parser
from triform.commands.train import finish


def main(arguments: list[str]) -> int:
    """Go on with a run from its newest checkpoint."""
    options = parser(
        "resume", "Go on with a run that was stopped, from its newest checkpoint: it ends as if it never had stopped."
    ).parse_args(arguments)

    from triform.run.folder import resolve_run
    from triform.run.job import resume

    return resume(resolve_run(options.run), options.trust, finish)
