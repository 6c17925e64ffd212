"""Tokenizers that there are already."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from triform.data.tokenizers.tokenizer import FILES, Tokenizer, tokenizer_file


@dataclasses.dataclass(frozen=True, repr=False)
class Pretrained:
    """A tokenizer as it is: one of ours, of Hugging Face (tokenizer.json) or of SentencePiece.

    Args:
        path: its folder, a run's, or the file itself: a tokenizer.json, or a model of SentencePiece (BPE or Unigram).

    Raises:
        ValueError: there is none, or it cannot be read.
    """

    path: str

    learns: ClassVar[bool] = False
    """Whether it reads anything of the training split."""

    @property
    def place(self) -> Path:
        """Where it is: a run has a folder of its own for it."""
        path, of_run = Path(self.path), Path(self.path) / "tokenizer"
        return of_run if tokenizer_file(path) is None and of_run.is_dir() else path

    def __repr__(self) -> str:
        """By what the files hold, so that a copy in another folder is the same tokenizer."""
        file = tokenizer_file(self.place)
        folder = self.place if file is None else file.parent
        beside = [folder / name for name in FILES[-2:]]
        sources = [folder / "source" / name for name in FILES]
        files = [path for path in (file, *beside, *sources) if path is not None and path.is_file()]
        content = b"|".join(path.read_bytes() for path in files)
        return f"Pretrained({hashlib.blake2b(content, digest_size=12).hexdigest()})"

    def train(self, texts: Iterator[str]) -> Tokenizer:
        return Tokenizer.load(self.place)
