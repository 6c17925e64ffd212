"""`triform explain KEY [key=value ...]`."""

from pathlib import Path

from triform.commands.parser import Parser


def main(arguments: list[str]) -> int:
    """Print a key's value, which file or override set it, and what else it may be."""
    made = Parser(
        prog="triform explain",
        description="Where the value of a key is from, and what it may be. The last place named is the one that holds.",
        allow_abbrev=False,
    )
    made.add_argument("key", metavar="KEY", help="such as optimizer.lr, or a group: model/attention")
    made.add_argument("overrides", nargs="*", metavar="key=value", help="what would be typed after train.py")
    made.add_argument("--config-dir", metavar="DIR", help="your own options, as for train.py")
    options = made.parse_args(arguments)

    from triform.run.explain import explain_key

    found = explain_key(options.key, options.overrides, [Path(options.config_dir)] if options.config_dir else [])
    print(f"{found.key}={found.value}")
    wide = max((len(source.place) for source in found.sources), default=0)
    long = max((len(source.text) for source in found.sources), default=0)
    for source in found.sources:
        print(f"  {source.place:<{wide}}  {source.text:<{long}}  {source.comment}".rstrip())
    if found.choices is not None:
        print(f"  choices: {found.choices}")
    return 0
