from typing import Any

import pytest

from triform.run.check import check
from triform.run.compose import compose
from triform.run.job import settled
from triform.run.secrets import check_secrets


def config(*overrides: str) -> dict[str, Any]:
    """A composed config as the runner checks it."""
    return settled(compose(list(overrides)))


def test_keys_that_only_a_file_could_add_are_refused() -> None:
    """Hydra checks what is typed against the files; nobody else checks the files."""
    for section, key in (("trainer", "max_step"), ("paths", "output"), ("optimizer", "beta"), ("data", "seqlen")):
        wrong = config()
        wrong[section][key] = 1
        with pytest.raises(ValueError, match=rf"{section}\.{key}: .*no such key"):
            check(wrong)
    wrong = config()
    del wrong["trainer"]["val_interval"]
    with pytest.raises(ValueError, match=r"trainer\.val_interval is missing"):
        check(wrong)


@pytest.mark.parametrize(
    "changed",
    [
        {"logger": {"api_key": "abc"}},
        {"callbacks": {"x": {"_target_": "torch.nn.ReLU", "Token": "abc"}}},
        {"data": {**compose(["data=text"])["data"], "train_files": ["https://me:abc@example.org/x.txt"]}},
    ],
)
def test_secrets_are_refused_and_not_repeated(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="would be written to the run's folder") as refusal:
        check_secrets({**config(), **changed})
    assert "abc" not in str(refusal.value)


def test_names_that_only_resemble_secrets_pass() -> None:
    check_secrets({"max_tokens": 3, "tokenizer": {"token": None}, "data": {"train_files": "https://example.org/a@b:c"}})


def test_counts_may_be_written_as_floats() -> None:
    assert config("trainer.max_tokens=1e9")["trainer"]["max_tokens"] == 10**9
    assert type(config("trainer.max_tokens=1e9")["trainer"]["max_tokens"]) is int
    check(config("trainer.max_tokens=1e9", "trainer.max_epochs=0.5"))
    with pytest.raises(ValueError, match=r"trainer\.max_steps=1\.5 is not a whole number"):
        check(config("trainer.max_steps=1.5"))


def test_batch_tokens_alone_is_enough() -> None:
    data = config("data.batch_tokens=2048")["data"]
    assert (data["batch_size"], data["batch_tokens"]) == (None, 2048)


@pytest.mark.parametrize("key", ["trainer.val_interval", "trainer.save_interval", "trainer.gradient_clip"])
def test_what_may_be_left_out(key: str) -> None:
    check(config(f"{key}=null"))


def test_every_default_passes() -> None:
    for recipe in ("dates", "stdlib", "stdlib_docs", "stdlib_modules"):
        check(config(f"experiment={recipe}"))
