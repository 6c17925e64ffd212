"""`triform resume RUN`."""

from triform.commands.parser import parser
from triform.commands.train import finish


def main(arguments: list[str]) -> int:
    """Go on with a run from its newest checkpoint."""
    made = parser(
        "resume",
        "Go on with a run that was stopped, from its newest checkpoint: it ends as if it never had stopped. With "
        "trainer.devices=4 and such on other devices than before.",
    )
    made.add_argument("overrides", nargs="*", metavar="key=value", help="where and how it goes on: keys of trainer")
    options = made.parse_args(arguments)

    from triform.run.folder import resolve_run
    from triform.run.job import resume

    return resume(resolve_run(options.run), options.trust, finish, options.overrides)
