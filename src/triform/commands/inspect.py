"""`triform inspect [RUN] [key=value ...]`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triform.commands.parser import Parser, config_folders
from triform.run.errors import BadInput, nearest


def main(arguments: list[str]) -> int:
    """Print the tree of a model's modules, its size, and what training it takes."""
    made = Parser(
        prog="triform inspect",
        description="The modules of a model with their shapes, its parameters, FLOPs and memory; nothing is computed. "
        "Of the model that key=value describe as for train.py, of a run, or in a line each of a folder of runs.",
        allow_abbrev=False,
    )
    made.add_argument(
        "words",
        nargs="*",
        metavar="RUN | FOLDER | MODEL | key=value",
        help="a run or a folder of them; a pretrained model's folder; an option of model, such as gpt2; what to change",
    )
    made.add_argument("--depth", type=int, default=99, metavar="N", help="levels of the tree (default: all)")
    made.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help="a package of your own")
    made.add_argument("--config-dir", metavar="DIR", help="your own options, as for train.py")
    options = made.parse_intermixed_args(arguments)
    folders = config_folders(options.config_dir)
    named = [word for word in options.words if "=" not in word and not word.startswith("~")]
    if len(named) > 1:
        raise BadInput(f"{' '.join(named)}: inspect one at a time, or the folder that they are in")
    words = [meant for word in options.words for meant in _meant(word)]
    paths = [word for word in words if "=" not in word and not word.startswith("~")]
    overrides = [word for word in words if word not in paths]
    if paths and not (Path(paths[0]) / "config.yaml").is_file():
        runs = sorted(file.parent for file in Path(paths[0]).expanduser().glob("*/config.yaml"))
        if runs and not overrides:
            for run in runs:
                print(f"{run.name}  {_line(*_described(run, [], options.trust, []))}")
            return 0
    path = Path(paths[0]) if paths else None
    for line in _page(*_described(path, overrides, options.trust, folders), options.depth):
        print(line)
    return 0


def _meant(word: str) -> list[str]:
    """An option of `model`, or a pretrained model's folder, as the overrides that choose it; anything else as it is.

    Raises:
        BadInput: a bare word that is nothing.
    """
    from triform.run.help import groups

    folder = Path(word).expanduser()
    if "=" in word or word.startswith("~") or (folder / "config.yaml").is_file():
        return [word]
    if (folder / "config.json").is_file():
        tokenizer = [] if (folder / "tokenizer.json").is_file() else ["tokenizer=byte"]
        return ["model=from_pretrained", f"model.path='{folder}'", *tokenizer]
    models = groups()["model"]
    if not folder.exists() and word not in models and folder.name == word:
        raise BadInput(f"{word}: no such run, folder or option of model{nearest(word, models)}")
    return [f"model={word}"] if not folder.exists() and word in models else [word]


def _described(
    path: Path | None, overrides: Sequence[str], trust: Sequence[str], folders: Sequence[Path]
) -> tuple[dict[str, Any], Any, Sequence[str]]:
    """Config, its model on the meta device, and what had to be assumed."""
    from triform.run.arguments import check_arguments
    from triform.run.build import check_targets, targets
    from triform.run.check import check_keys
    from triform.run.compose import compose
    from triform.run.folder import resolve_run
    from triform.run.job import settled
    from triform.run.rerun import changed
    from triform.run.values import check_values

    folder = None if path is None else resolve_run(path)
    config = settled(compose(overrides, folders)) if folder is None else changed(folder, overrides)[0]
    config = {**config, "trust": [*trust, *(config["trust"] if folder is None else [])]}
    check_keys(config)
    check_targets({key: value for key, value in config.items() if key != "trust"}, config["trust"])
    check_values(config)
    for key, node in targets({name: config[name] for name in ("model", "task", "optimizer")}):
        check_arguments(node, key, config["trust"])

    from triform.data.tokenizers import Tokenizer
    from triform.run.folder import read_labels
    from triform.run.parts import known_data
    from triform.run.sketch import sketch

    tokenizer, labels = None, None
    if folder is not None and folder.tokenizer.is_dir():
        tokenizer, labels = Tokenizer.load(folder.tokenizer), read_labels(folder)
    elif (prepared := known_data(config)) is not None:
        tokenizer, labels = prepared.tokenizer, prepared.labels
    known = sketch(config, tokenizer, labels)
    return config, known.model(config), known.notes


def _page(config: Mapping[str, Any], model: Any, notes: Sequence[str], depth: int) -> list[str]:
    from triform.analysis.anatomy import memory, mib, micro_batch, tree
    from triform.models.cost import count_parameters, flops_per_token
    from triform.run.build import build
    from triform.run.check import devices
    from triform.training.hardware import pick_precision

    rows = [("module", "class", "weights", "parameters")]
    for part in tree(model, depth):
        what = f"{part.count} x {part.kind}" if part.count > 1 else part.kind
        shapes = [
            f"shares {name}" if shape is None else f"{name} {' x '.join(map(str, shape))}"
            for name, shape in part.shapes
        ]
        rows.append((f"{'  ' * part.depth}{part.name}", what, ", ".join(shapes), f"{part.parameters:,}"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:<{widths[2]}}  {d:>{widths[3]}}" for a, b, c, d in rows]

    seq_len = min(config["data"]["seq_len"], model.max_seq_len)
    batch = micro_batch(config["data"], config["trainer"], devices(config)[1])
    precision = pick_precision(config["trainer"]["precision"], devices(config)[0])
    used = memory(model, build(config["optimizer"], config["trust"], "optimizer"), batch, seq_len, precision)
    both = ", on either side" if model.family == "encoder_decoder" else ""
    lines += [
        "",
        f"parameters       {count_parameters(model):,}, shared ones counted once",
        f"FLOPs per token  {flops_per_token(model, seq_len):.4g}, forward and backward, rows of {seq_len} tokens",
        f"memory           {mib(used.total)} to train, of each device:",
        f"  weights        {mib(used.weights)}",
        f"  gradients      {mib(used.gradients)}",
        f"  optimizer      {mib(used.optimizer)}",
        f"  activations    {mib(used.activations)}, estimated in {precision} for {batch} x {seq_len} tokens{both}",
        f"  logits         {mib(used.logits)}, with their gradient",
    ]
    if used.attention is not None:
        lines.append(f"                 and {mib(used.attention)} more where attention has no fused kernel")
    return [*lines, *notes]


def _line(config: Mapping[str, Any], model: Any, notes: Sequence[str]) -> str:
    from triform.models.cost import count_parameters, flops_per_token

    seq_len = min(config["data"]["seq_len"], model.max_seq_len)
    size = f"{count_parameters(model):,} parameters  {flops_per_token(model, seq_len):.4g} FLOPs per token"
    return f"{type(model).__name__}  {size}"
