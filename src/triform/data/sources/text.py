"""Running text from the user's own files."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from triform.data.sources.base import Kind
from triform.data.sources.files import Files, all_files, check_fraction, fingerprint, read_text, resolve_splits

if TYPE_CHECKING:
    import datasets


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """Plain text, UTF-8, perhaps gzipped. Each file is one document.

    Args:
        train_files: path, list of paths, or glob.
        validation_files: the same; None: the last part of the training text.
        test_files: the same; None: there is no test split.
        validation_fraction: characters of the training text that are that last part, as a share.

    Raises:
        ValueError: `validation_fraction` is not between 0 and 1. `check`: a file is missing or empty. `load`: it is
            not UTF-8.
    """

    train_files: Files
    validation_files: Files
    test_files: Files
    validation_fraction: float

    kind: ClassVar[Kind] = "text"

    def __post_init__(self) -> None:
        check_fraction("TextFiles", self.validation_fraction)

    def check(self) -> None:
        self._paths()

    def fingerprint(self) -> str:
        return fingerprint(f"TextFiles {self.validation_fraction}", self._paths())

    def files(self) -> list[Path]:
        return all_files(self._paths())

    def load(self) -> dict[str, "datasets.Dataset"]:
        from datasets import Dataset, Features, Value

        texts = {
            name: [read_text(path, f"data.{name}_files") for path in paths] for name, paths in self._paths().items()
        }
        if "validation" not in texts:
            texts["train"], texts["validation"] = _last_part(texts["train"], self.validation_fraction)
        features = Features({"text": Value("large_string")})  # which may pass 2 GiB
        return {name: Dataset.from_dict({"text": documents}, features=features) for name, documents in texts.items()}

    def _paths(self) -> dict[str, list[Path]]:
        return resolve_splits(self.train_files, self.validation_files, self.test_files)


def _last_part(documents: list[str], fraction: float) -> tuple[list[str], list[str]]:
    place = int(sum(len(document) for document in documents) * (1 - fraction))
    before, after = [], []
    for document in documents:
        before.append(document[:place])
        after.append(document[place:])
        place = max(0, place - len(document))
    return [text for text in before if text], [text for text in after if text]
