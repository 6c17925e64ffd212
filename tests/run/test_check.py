from typing import Any

import pytest

from triform.run.check import check, check_arguments, check_secrets
from triform.run.compose import compose
from triform.run.job import settled


def config(*overrides: str) -> dict[str, Any]:
    """A composed config as the runner checks it."""
    return settled(compose(list(overrides)))


class Part:
    """Every kind of plain annotation."""

    def __init__(
        self, n: int, share: float, on: bool, name: str | None, many: list[int], x: type | list[int], rest: int = 0
    ) -> None: ...


@pytest.mark.parametrize(
    "changed",
    [{}, {"share": 1}, {"name": None}, {"many": []}, {"many": {"_target_": "a.Sequence"}}, {"x": "any"}, {"rest": 3}],
)
def test_arguments_that_fit(changed: dict[str, Any]) -> None:
    check_arguments(node(**changed), "part", ["tests"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n": 1.5}, r"part\.n=1\.5 is not a whole number; set part\.n"),
        ({"n": True}, r"part\.n=true is not a whole number"),
        ({"n": None}, r"part\.n=null is not a whole number"),
        ({"share": "half"}, r"part\.share=half is not a number"),
        ({"on": 1}, r"part\.on=1 is not true or false"),
        ({"name": 3}, r"part\.name=3 is not a text or null"),
        ({"many": 3}, r"part\.many=3 is not a list, each a whole number; set part\.many"),
        ({"many": "3"}, r"part\.many=3 is not a list"),
        ({"many": [1, "two"]}, r"part\.many=\[1, 'two'\] is not a list, each a whole number"),
        ({"shar": 1.0}, r"part\.shar: Part takes no such key \(did you mean 'share'\?\); it has n, share"),
    ],
)
def test_arguments_that_do_not_fit(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_arguments(node(**changed), "part", ["tests"])


def test_an_argument_that_is_missing() -> None:
    given = node()
    del given["share"]
    with pytest.raises(ValueError, match=r"part\.share is missing: Part needs it"):
        check_arguments(given, "part", ["tests"])
    check_arguments({**given, "_partial_": True}, "part", ["tests"])  # its owner may give it


def node(**changed: Any) -> dict[str, Any]:
    """A node that builds `Part`."""
    plain = {"n": 1, "share": 0.5, "on": False, "name": "x", "many": [1], "x": {}}
    return {"_target_": f"{__name__}.Part", **plain, **changed}


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
