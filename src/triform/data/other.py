"""Data that a trained model is measured on, besides what its run was prepared from."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from triform.data.prepare import Split, tokenise
from triform.data.sources.base import Kind, Row
from triform.data.spool import LABELS, Labels, Spool, files_of
from triform.data.tokenizers import Tokenizer


def other_split(
    rows: Iterable[Row],
    kind: Kind,
    name: str,
    labels: Sequence[str] | None,
    tokenizer: Tokenizer,
    shape: Sequence[int] | None,
    folder: Path,
) -> tuple[Split, int]:
    """The rows as a split in `folder`, with the tokenizer and the classes of a trained model, and how many of its
    tokens are unknown.

    Args:
        name: of the split, for messages.
        labels: the names of the classes by number, where there are some.
        shape: of images.

    Raises:
        ValueError: there is no row, or a label that is none of `labels`.
    """
    known = Labels()
    known.numbers, known.is_complete = {label: i for i, label in enumerate(labels or [])}, True
    with Spool(folder, name, kind, known if kind in LABELS else Labels()) as spool:
        for row in rows:
            spool.add(row)
    if (folder / f"{name}.{files_of(kind)[0]}_ends").stat().st_size == 0:
        raise ValueError(f"the split {name} has no examples; name files that have some in data.{name}_files")
    dtype = "uint32"
    n_unknown = tokenise(folder, name, kind, tokenizer, dtype, lambda n: None)
    return Split(kind, folder / name, dtype, shape), n_unknown
