"""Configs and command lines that would carry a secret into a run's folder are refused."""

from collections.abc import Mapping, Sequence
from typing import Any

from triform.run.errors import BadInput
from triform.training.secrets import LOGIN, NAMED_LOGIN, QUERY, known

_KEYS = ("api_key", "password", "passwd", "secret", "secret_key", "token", "access_token", "auth_token")


def check_secrets(node: Any, key: str = "") -> None:
    """Refuse a config, or what was typed for one, that would carry a secret into the run's folder.

    Raises:
        BadInput: it names the key, and never the value.
    """
    if isinstance(node, Mapping):
        for name, value in node.items():
            place = f"{key}.{name}" if key else str(name)
            if str(name).lower() in _KEYS and value is not None:
                raise BadInput(
                    f"{place}: a secret would be written to the run's folder; leave it out and set the variable of "
                    "your environment that its library reads, such as WANDB_API_KEY or HF_TOKEN"
                )
            check_secrets(value, place)
    elif isinstance(node, list | tuple):
        for value in node:
            check_secrets(value, key)
    elif isinstance(node, str):
        if any(value in node for value in known()):
            raise BadInput(
                f"{key}: the value of a secret variable of your environment would be written to the run's folder; "
                "leave it out: what needs it reads the variable itself"
            )
        if any(pattern.search(node) for pattern in (LOGIN, NAMED_LOGIN)):
            raise BadInput(
                f"{key}: a password in an address would be written to the run's folder; leave it out of the address "
                "and keep it in ~/.netrc"
            )
        if QUERY.search(node):
            raise BadInput(
                f"{key}: a key or signature in an address would be written to the run's folder; fetch the file first "
                "and name it"
            )


def check_typed(words: Sequence[str]) -> None:
    """Refuse words of a command line that would carry a secret into a record of them; see `check_secrets`."""
    for word in words:
        key, _, value = word.partition("=")
        path = key.lstrip("+~").split(".")
        if path[-1].lower() in _KEYS and value and value not in ("null", "~"):
            check_secrets({path[-1]: value}, ".".join(path[:-1]))
        check_secrets(value, key)
