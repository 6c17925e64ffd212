"""`triform replay RUN`."""

from triform.commands.parser import parser


def main(arguments: list[str]) -> int:
    """Do the step once more in which a run failed."""
    options = parser(
        "replay",
        "Do the step once more in which a run failed: from its last checkpoint, with the same data, in another folder.",
    ).parse_args(arguments)

    from triform.run.folder import resolve_run
    from triform.run.replay import replay

    return replay(resolve_run(options.run), options.trust)
