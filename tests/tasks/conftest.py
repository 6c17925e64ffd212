import pytest

from triform.data.tokenizers import Char, Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """One token a letter."""
    return Char().train(iter(["abcdefghijklmnopqrstuvwxyz 0123456789-,"]))
