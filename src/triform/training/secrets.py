"""Passwords, keys and tokens are taken out of what is written, as far as they show. Imports nothing that takes time."""

import io
import os
import re
from typing import TextIO

_VARIABLE = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(API|ACCESS|SECRET|PRIVATE)_?KEY)(_|$)"
)
LOGIN = re.compile(r"(?P<before>://)(?P<secret>[^/\s@:]*:[^/\s@]+)(?P<after>@)")
NAMED_LOGIN = re.compile(r"(?P<before>https?://)(?P<secret>[^/\s@]+)(?P<after>@)")
QUERY = re.compile(
    r"(?P<before>[?&](?:access_token|auth_token|token|api_?key|key|password|secret|sig|signature|"
    r"X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature)=)(?P<secret>[^&\s#'\"]{6,})(?P<after>)",
    re.IGNORECASE,
)
_PATTERNS = (LOGIN, NAMED_LOGIN, QUERY)

LEAST = 8
"""Letters that the value of a variable must have to be looked for: a shorter one is found in many a word."""

HIDDEN = "***"


def known() -> list[str]:
    """Values of the environment's variables that are secrets by their names, longest first."""
    values = {value for name, value in os.environ.items() if _VARIABLE.search(name.upper()) and len(value) >= LEAST}
    return sorted(values, key=len, reverse=True)


def hidden(text: str) -> str:
    """A text without the secrets that show themselves: those of the environment, and those in addresses."""
    for value in known():
        text = text.replace(value, HIDDEN)
    if "://" in text or "=" in text:
        for pattern in _PATTERNS:
            text = pattern.sub(lambda found: f"{found['before']}{HIDDEN}{found['after']}", text)
    return text


class Hiding(io.TextIOBase):
    """A text file that is written without secrets; one that two calls write in halves is not seen."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, text: str) -> int:
        self.file.write(hidden(text))
        return len(text)

    def flush(self) -> None:
        self.file.flush()
