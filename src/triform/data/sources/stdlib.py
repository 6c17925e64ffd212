"""The standard library of the running Python as text: real data on every machine, for demonstrations.

Three readings of the same files: their code, their docstrings with the language reference, and docstrings labelled with
their module. All differ from one version of Python to the next.
"""

import ast
import dataclasses
import inspect
import re
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from pydoc_data import topics
from typing import TYPE_CHECKING, ClassVar

from triform.data.sources.base import Kind, digest, stable_hash

if TYPE_CHECKING:
    import datasets

# Tests, what is installed beside the library, and what the build machine wrote are left out.
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@cache
def python_files() -> dict[str, str]:
    """The text of each of Python's own files by its path from the library's folder, in order of path.

    Raises:
        ValueError: there are none, as in a Python that keeps its library in an archive.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = {}
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder)
        if LEFT_OUT.isdisjoint(place.parts) and not place.name.startswith("_sysconfigdata"):
            try:
                with tokenize.open(path) as file:  # in the encoding that the file declares
                    files[place.as_posix()] = file.read()
            except (SyntaxError, UnicodeDecodeError):
                continue  # files that are wrong on purpose
    if not files:
        raise ValueError(f"stdlib: {folder} holds no Python files; use a Python that has its library as files")
    return files


@cache
def docstrings() -> list[tuple[str, str]]:
    """Every docstring of `python_files`, of modules, classes and functions, with its file's path."""
    found = []
    for place, text in python_files().items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old escapes in the library
            tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring and docstring.strip():
                    found.append((place, docstring))
    return found


def _held_out(name: str, fraction: float) -> bool:
    return stable_hash(name) < fraction * 2**64


def _fingerprint(settings: str) -> str:
    files = [f"{place}\n{text}" for place, text in python_files().items()]
    return digest([settings, sys.version, Path(__file__).read_bytes(), *files])


def _by_place(rows: list[tuple[str, str]], fraction: float) -> dict[str, "datasets.Dataset"]:
    from datasets import Dataset

    splits: dict[str, list[str]] = {"train": [], "validation": []}
    for place, text in rows:
        splits["validation" if _held_out(place, fraction) else "train"].append(text)
    return {name: Dataset.from_dict({"text": texts}) for name, texts in splits.items()}


@dataclasses.dataclass(frozen=True)
class Stdlib:
    """The code of the standard library, tests left out, about 12 MB; each file is a document.

    Args:
        validation_fraction: of the files, chosen by a hash of their paths.
    """

    validation_fraction: float

    kind: ClassVar[Kind] = "text"

    def check(self) -> None:
        pass

    def fingerprint(self) -> str:
        return _fingerprint(repr(self))

    def files(self) -> list[Path]:
        return []

    def load(self) -> dict[str, "datasets.Dataset"]:
        rows = [(place, text) for place, text in python_files().items() if text.strip()]
        return _by_place(rows, self.validation_fraction)


@dataclasses.dataclass(frozen=True)
class StdlibDocs:
    """English about Python: the docstrings of the standard library and the language reference that `help()` shows.

    Each docstring and each topic is a document; equal ones are kept once.

    Args:
        validation_fraction: of the files and topics, chosen by a hash of their names.
    """

    validation_fraction: float

    kind: ClassVar[Kind] = "text"

    def check(self) -> None:
        pass

    def fingerprint(self) -> str:
        return _fingerprint(repr(self))

    def files(self) -> list[Path]:
        return []

    def load(self) -> dict[str, "datasets.Dataset"]:
        rows = [*docstrings(), *((f"topic {name}", text) for name, text in sorted(topics.topics.items()))]
        once = {text: place for place, text in reversed(rows)}
        return _by_place([(place, text) for text, place in reversed(once.items())], self.validation_fraction)


@dataclasses.dataclass(frozen=True)
class StdlibModules:
    """Docstrings labelled with the top-level package or module that they are from, the largest classes.

    Docstrings of fewer than `MIN_WORDS` words are left out, equal ones (blanks and case apart) are kept once, and those
    that several modules have not at all. The module's own name, as a word in any case, is replaced by "_".

    Args:
        n_classes: so many modules, those with most docstrings.
        validation_fraction: of the docstrings, chosen by a hash of their text.
    """

    n_classes: int
    validation_fraction: float

    kind: ClassVar[Kind] = "labelled"

    MIN_WORDS: ClassVar[int] = 4

    def check(self) -> None:
        pass

    def fingerprint(self) -> str:
        return _fingerprint(repr(self))

    def files(self) -> list[Path]:
        return []

    def load(self) -> dict[str, "datasets.Dataset"]:
        from datasets import Dataset

        modules_of: defaultdict[str, set[str]] = defaultdict(set)
        texts: dict[str, str] = {}
        for place, docstring in docstrings():
            module = place.split("/")[0].removesuffix(".py")
            text = re.sub(rf"\b{re.escape(module)}\b", "_", inspect.cleandoc(docstring), flags=re.IGNORECASE)
            plain = " ".join(text.lower().split())
            if len(plain.split()) >= self.MIN_WORDS:
                modules_of[plain].add(module)
                texts.setdefault(plain, text)
        rows = [(texts[plain], next(iter(modules))) for plain, modules in modules_of.items() if len(modules) == 1]
        counts = Counter(module for _, module in rows)
        largest = {module for module, _ in counts.most_common(self.n_classes)}
        splits: dict[str, list[tuple[str, str]]] = {"train": [], "validation": []}
        for text, module in rows:
            if module in largest:
                splits["validation" if _held_out(text, self.validation_fraction) else "train"].append((text, module))
        return {
            name: Dataset.from_dict({"text": [text for text, _ in part], "label": [label for _, label in part]})
            for name, part in splits.items()
        }
