"""The page of `python train.py --help`, read from the comments in `conf/` without importing torch or Hydra."""

import re
from collections.abc import Iterator
from pathlib import Path

from triform.run.errors import BadInput, nearest

EXAMPLES = (
    ("python train.py", "dates as people write them to ISO 8601, in one to two minutes"),
    ("python train.py data=text data.train_files=book.txt", "your own text"),
    ("python train.py data=pairs data.train_files=[a.en,a.de]", "your own pairs, such as a translation"),
    ("python train.py data=labelled data.train_files=x.tsv", "your own labelled texts"),
    ("python train.py experiment=stdlib model.d_model=256", "a recipe, with a change"),
    ("python train.py model/attention=grouped_query", "another part in every block"),
    ("python train.py -m model/position=learned,rotary seed=0,1", "every combination, jobs at once; docs/sweeps.md"),
    ("python train.py debug=overfit", "is it able to learn one batch?"),
)

KEYS = (
    *("model.d_model", "model.n_layers", "model.n_heads", "model.n_kv_heads", "model.d_ff", "model.dropout"),
    *("model.max_seq_len", "data.seq_len", "data.batch_size", "data.batch_tokens", "data.num_workers"),
    *("tokenizer.vocab_size", "optimizer.lr", "scheduler.warmup_steps"),
    *("trainer.max_steps", "trainer.max_epochs", "trainer.max_tokens", "trainer.max_hours", "trainer.val_interval"),
    *("trainer.devices", "trainer.precision", "trainer.accumulate", "trainer.gradient_clip"),
    *("seed", "name", "paths.outputs", "paths.cache", "traceback"),
)
"""Keys that the page shows, with the value and comment of the file that states them."""

PARTS_OF = {"model": "encoder_decoder", "tokenizer": "bpe"}
"""The file that speaks for a group where the default one lacks a key."""

COMMANDS = (
    ("triform train ...", "the same as python train.py ..."),
    ("triform plan ...", "what train.py would do, with -m a whole sweep: sizes, memory, hours; nothing is written"),
    ("triform resume RUN", "go on with a run that was stopped, bit for bit"),
    ("triform rerun RUN key=value", "the same run again, with a change"),
    ("triform sweep status FOLDER", "how far a sweep is; also resume, retry, extend"),
    ("triform evaluate RUN --split test", "measure its best checkpoint"),
    ("triform generate RUN --prompt TEXT", "let its best checkpoint write"),
)


def conf_dir() -> Path:
    """The folder of the config groups: inside an installed package, or beside `src` in a clone."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parents[1] / "conf"


def groups(*folders: Path) -> dict[str, list[str]]:
    """Config group -> its options, in triform's conf and the user's own folders."""
    found: dict[str, list[str]] = {}
    for folder in (*folders, conf_dir()):
        for file in sorted(folder.rglob("*.yaml")):
            group = file.parent.relative_to(folder).as_posix()
            if group != "." and not group.startswith("hydra") and file.stem not in found.get(group, []):
                found.setdefault(group, []).append(file.stem)
    return found


def page(topic: str | None = None) -> str:
    """The help page; with a topic, the files of a group (`trainer`, `model/position`) or one (`task=seq2seq`).

    Raises:
        BadInput: there is no such group or option.
    """
    return _overview() if topic is None else _group(topic)


def _overview() -> str:
    known, chosen, values = groups(), _defaults(conf_dir() / "train.yaml"), _values()
    lines = ["Train a Transformer: encoder, decoder or encoder-decoder, from one set of parts.", ""]
    lines += _columns([(f"  {command}", what) for command, what in EXAMPLES])
    lines += ["", "Choose with group=option (* is the default; `data=X` brings the recipe `experiment=X` along):"]
    rows = []
    for group in sorted(known, key=lambda name: (list(chosen).index(name) if name in chosen else 99, name)):
        if group.startswith("model/") or group == "experiment":
            continue
        rows.append((f"  {group}", "  ".join(f"{o}*" if o == chosen.get(group) else o for o in known[group])))
    lines += [*_columns(rows), "", "Parts of the model:"]
    parts = _defaults(conf_dir() / "model" / "encoder_decoder.yaml")
    rows = [
        (f"  {group}", "  ".join(f"{o}*" if o == parts.get(group.split("/")[1]) else o for o in options))
        for group, options in known.items()
        if group.startswith("model/")
    ]
    lines += [*_columns(rows), "", "Recipes:"]
    lines += _columns(
        [
            (f"  experiment={name}", _first_comment(conf_dir() / "experiment" / f"{name}.yaml"))
            for name in known.get("experiment", [])
        ]
    )
    lines += ["", "Most used keys, set with key=value (defaults of `python train.py`):"]
    lines += _columns([(f"  {key}={values[key][0]}", values[key][1]) for key in KEYS if key in values])
    lines += ["", "Before and after:", *_columns([(f"  {command}", what) for command, what in COMMANDS])]
    lines += ["", "More:"]
    lines += _columns(
        [
            ("  python train.py --help trainer", "every key of a group, with its comment; also --help model/attention"),
            ("  python train.py ... --cfg job", "print the config and stop"),
            ("  python train.py --config-dir DIR ...", "your own options: DIR/model/mine.yaml is model=mine"),
            ("  exit codes", "0 finished, 1 failed, 2 bad input, 75 preempted (resume it)"),
        ]
    )
    return "\n".join(lines)


def _group(topic: str) -> str:
    known = groups()
    group, _, option = topic.partition("=")
    group = group.removeprefix("conf/").removesuffix(".yaml").strip("/")
    if not option and group not in known and group.rpartition("/")[0] in known:
        group, _, option = group.rpartition("/")
    if group not in known and "." in group and group.split(".")[0] in known:
        group = group.split(".")[0]
    if group not in known:
        raise BadInput(f"--help {topic}: no such group{nearest(group, known)}; there are {', '.join(sorted(known))}")
    if option and option not in known[group]:
        raise BadInput(
            f"--help {topic}: no such option{nearest(option, known[group])}; there are {', '.join(known[group])}"
        )
    texts = []
    for name in [option] if option else known[group]:
        text = (conf_dir() / group / f"{name}.yaml").read_text(encoding="utf-8").strip()
        texts.append(f"{group}={name}\n" + "\n".join(f"    {line}".rstrip() for line in text.splitlines()))
    return "\n\n".join(texts)


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    width = min(max((len(left) for left, _ in rows), default=0), 62)
    return [f"{left:<{width}}  {right}".rstrip() for left, right in rows]


def _first_comment(file: Path) -> str:
    """The first comment of a file that is not Hydra's own header."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ").strip()
    return ""


def _defaults(file: Path) -> dict[str, str]:
    """Group -> option, of a file's defaults list."""
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8")
    return dict(re.findall(r"^\s+- (?:override )?/?([\w/]+): ([\w]+)", text, re.MULTILINE))


def _entries(file: Path) -> Iterator[tuple[str, str, str]]:
    """Dotted key, value and comment of each line `key: value  # comment` of a file of plain mappings."""
    stack: list[tuple[int, str]] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        match = re.match(r"^( *)([\w/@.]+):(?:\s+([^#]*?))?\s*(?:#\s*(.*))?$", line)
        if not match or line.lstrip().startswith("-"):
            continue
        indent, key, value, comment = len(match[1]), match[2], match[3] or "", match[4] or ""
        stack = [(depth, name) for depth, name in stack if depth < indent]
        stack.append((indent, key))
        if value:
            yield ".".join(name for _, name in stack), value, comment


def _values() -> dict[str, tuple[str, str]]:
    """Value and comment of every key, as `python train.py` has them by default."""
    conf = conf_dir()
    found = {key: (value, comment) for key, value, comment in _entries(conf / "train.yaml")}
    chosen = _defaults(conf / "train.yaml")
    for options in (PARTS_OF, chosen):
        for group, option in options.items():
            file = conf / group / f"{option}.yaml"
            where = "" if chosen.get(group) == option else f" (with {group}={option})"
            if file.is_file() and group != "experiment":
                found |= {f"{group}.{key}": (value, comment + where) for key, value, comment in _entries(file)}
    recipe = conf / "experiment" / f"{chosen.get('experiment')}.yaml"
    if recipe.is_file():
        for key, value, comment in _entries(recipe):
            found[key] = (value, comment or found.get(key, ("", ""))[1])
    return found
