"""What a run says, kept in its folder."""

import io
import logging
import re
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from triform.training.secrets import Hiding

_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class _Tee(io.TextIOBase):
    """Standard output that is also written to a file, there without colours."""

    def __init__(self, stdout: TextIO, file: io.TextIOBase) -> None:
        self.stdout, self.file = stdout, file

    def write(self, text: str) -> int:
        self.file.write(_STYLE.sub("", text))
        self.file.flush()
        return self.stdout.write(text)

    def flush(self) -> None:
        self.stdout.flush()

    def isatty(self) -> bool:
        return self.stdout.isatty()

    def fileno(self) -> int:
        return self.stdout.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stdout.encoding


@contextmanager
def recorded(file: Path) -> Iterator[None]:
    """Append to `file` what is printed and logged meanwhile, and the traceback of an exception that leaves."""
    with file.open("a", encoding="utf-8") as open_file:
        log = Hiding(open_file)
        handler = logging.StreamHandler(log)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger().addHandler(handler)
        log.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        try:
            with redirect_stdout(_Tee(sys.stdout, log)):
                yield
        except BaseException:
            traceback.print_exc(file=log)
            raise
        finally:
            logging.getLogger().removeHandler(handler)
