"""`triform attention RUN --source TEXT`."""

from pathlib import Path

from triform.commands.parser import parser


def main(arguments: list[str]) -> int:
    """Draw where a trained model looks while it reads, and print where the pictures are."""
    made = parser(
        "attention",
        "The attention weights of every layer and head while a text is read: a picture of each stack, and one page of "
        "HTML to explore them, which needs no network.",
    )
    made.add_argument("--source", required=True, metavar="TEXT", help="what is read")
    made.add_argument(
        "--target", metavar="TEXT", help="what follows or answers it (default: of a model of pairs its own answer)"
    )
    made.add_argument("--out", metavar="DIR", help="where to write (default: plots/attention in the run's folder)")
    options = made.parse_args([word for word in arguments if not word.startswith("traceback=")])  # for who calls

    from triform.analysis.attention import attention_maps, draw, page
    from triform.run.folder import write_whole
    from triform.run.load import open_run

    loaded = open_run(options.run, options.trust)
    maps = attention_maps(loaded, options.source, options.target)
    folder = Path(options.out).expanduser() if options.out else loaded.folder.plots / "attention"
    folder.mkdir(parents=True, exist_ok=True)
    for one in maps:
        draw(one, folder / f"{one.name}.png")
        print(folder / f"{one.name}.png")
    write_whole(folder / "attention.html", page(maps, f"Attention of {loaded.folder.path.name}"))
    print(f"page: {folder / 'attention.html'}")
    return 0
