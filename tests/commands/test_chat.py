"""`triform chat`, and text that is shown while it is written."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from tests.training.runs import SIZES
from triform.commands import main
from triform.commands.chat import History
from triform.commands.stream import Stream
from triform.data.sources.examples import Chat
from triform.data.tokenizers import Byte, Tokenizer
from triform.run.compose import compose
from triform.run.job import checked, created, rank_main, settled
from triform.run.ranks import start_all

TEMPLATE = "<{role}>{content}|\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Byte().train(iter([]))


def test_text_is_shown_once_it_is_certain(tokenizer: Tokenizer) -> None:
    """No half of a character, nothing of the end mark; what only began like it is shown in the end."""
    shown: list[str] = []
    stream = Stream(tokenizer, shown.append, tokenizer.encode("|\n"))
    ends = [stream(torch.tensor([token])) for token in tokenizer.encode("aé|b|\n")]
    assert shown == ["a", "é", "|b"]
    assert ends == [False] * 6 + [True]
    stream.close()
    assert "".join(shown) == stream.text == "aé|b"
    rest: list[str] = []
    stream = Stream(tokenizer, rest.append, tokenizer.encode("|\n"))
    for token in tokenizer.encode("x|"):
        stream(torch.tensor([token]))
    assert rest == ["x"]
    stream.close()
    assert "".join(rest) == "x|"


def test_a_conversation_is_tokenised_as_in_training(tokenizer: Tokenizer) -> None:
    history = History(Chat(TEMPLATE), tokenizer, 100, "be kind")
    assert tokenizer.decode(history.asked("hi")) == "<system>be kind|\n<user>hi|\n<assistant>"
    history.answered("ho")
    assert tokenizer.decode(history.asked("{role}")) == (
        "<system>be kind|\n<user>hi|\n<assistant>ho|\n<user>{role}|\n<assistant>"
    )


def test_the_oldest_messages_are_forgotten(tokenizer: Tokenizer) -> None:
    """Of 80 tokens 20 are kept free, 11 begin the answer; a question here has 9 and an answer 15."""
    history = History(Chat(TEMPLATE), tokenizer, 80, None)
    for name in "abcd":
        prompt = tokenizer.decode(history.asked(name))
        history.answered(name.upper() * 2)
        assert len(prompt) <= 60
    assert prompt == "<user>c|\n<assistant>CC|\n<user>d|\n<assistant>"
    with pytest.raises(ValueError, match="the message has 58 tokens, and 49 fit"):
        history.asked("x" * 50)
    assert tokenizer.decode(history.asked("e")).endswith("<user>d|\n<assistant>DD|\n<user>e|\n<assistant>")


def test_talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that has learnt one answer by heart gives it, without the mark that ends it."""
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello you"}]
    (tmp_path / "c.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 8)
    (tmp_path / "v.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    words = ["data=chat", f"data.train_files={tmp_path}/c.jsonl", f"data.validation_files={tmp_path}/v.jsonl"]
    words += [f"data.template={json.dumps(TEMPLATE)}", "tokenizer=char", "data.seq_len=40", *SIZES, "logger=csv"]
    words += ["model.max_seq_len=60", "model.dropout=0", "optimizer.lr=0.01", "data.batch_size=8"]
    words += ["trainer.max_steps=60", "trainer.max_epochs=null", "scheduler=constant", f"paths.outputs={tmp_path}/out"]
    config = settled(compose(words))
    folder = created(config, words, checked(config))
    assert start_all([{}], rank_main, (folder, False)) == 0
    run = str(folder.path)
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n\n" + "hi" * 40 + "\nhi\n"))
    assert main(["chat", run, "--temperature", "0"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "hello you"
    assert len(out.splitlines()) == 2
    assert "the message has" in err
    for words, message in (
        (["chat", run, "--num-beams", "2"], "an answer is shown while it is written"),
        (["chat", run, "--temperature", "-1"], "--temperature -1"),
        (["translate", run], "trained on Chat has learnt no targets"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err
