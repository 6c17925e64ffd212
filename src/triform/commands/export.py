"""`triform export RUN FOLDER`."""

from pathlib import Path

from triform.commands.parser import parser


def main(arguments: list[str]) -> int:
    """Write a trained model as other tools read it."""
    made = parser(
        "export",
        "Write a model with its tokenizer to a new folder: as transformers reads it where it has such a model, else "
        "with triform's own config, for triform.load.",
    )
    made.add_argument("folder", metavar="FOLDER", help="a new folder")
    options = made.parse_args(arguments)

    from triform.run.load import load
    from triform.run.pretrained import check_new, save_pretrained

    folder = Path(options.folder).expanduser()
    check_new(folder)
    model, tokenizer = load(options.run, options.trust)
    kind = save_pretrained(model, folder, tokenizer)
    reader = "triform.load(FOLDER)" if kind == "triform" else f"transformers.{kind}.from_pretrained(FOLDER)"
    print(f"{folder}: read it with {reader.replace('FOLDER', repr(str(folder)))}")
    return 0
