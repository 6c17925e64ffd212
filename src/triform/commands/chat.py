"""`triform chat RUN`."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from triform.commands.generate import WRITE, add_draw, check_draw, write
from triform.commands.parser import parser
from triform.run.errors import BadInput

if TYPE_CHECKING:
    from triform.data.sources.examples import Chat
    from triform.data.tokenizers import Tokenizer

ANSWER = 4
"""The share of `max_seq_len` that is kept free for an answer is one by this."""


def main(arguments: list[str]) -> int:
    """Answer line after line, until the input ends."""
    made = parser(
        "chat", "Talk with a model of task=chat: a message a line, Ctrl-D ends. It hears what fits of the past."
    )
    made.add_argument("--system", metavar="TEXT", help="what is said before all else, in the role system")
    add_draw(made)
    options = made.parse_args([word for word in arguments if not word.startswith("traceback=")])  # for who calls
    check_draw(options)
    given = {name: value for name, value in vars(options).items() if name in WRITE and value is not None}
    if "num_beams" in given or "length_penalty" in given:
        raise BadInput("--num-beams, --length-penalty: an answer is shown while it is written, not searched for")

    from triform.commands.stream import Stream
    from triform.data.sources.examples import Chat
    from triform.run.load import open_run
    from triform.tasks.chat import Chat as ChatTask

    loaded = open_run(options.run, options.trust)
    template = loaded.config["data"].get("template")
    if not isinstance(loaded.objective, ChatTask) or not isinstance(template, str):
        raise BadInput(
            f"{options.run}: a model trained on {type(loaded.objective).__name__} has learnt no conversation; talk "
            "with one of task=chat, or let it continue a text: triform generate"
        )
    model: Any = loaded.model
    history = History(Chat(template), loaded.tokenizer, model.max_seq_len, options.system)
    for text in _messages():
        try:
            ids = history.asked(text)
        except ValueError as error:
            print(f"{error}; shorten it", file=sys.stderr)
            continue
        stream = Stream(loaded.tokenizer, lambda text: print(text, end="", flush=True), history.end)
        write(loaded, ids, WRITE | given, stream)
        stream.close()
        print(flush=True)
        history.answered(stream.text)
    return 0


class History:
    """What has been said, in tokens as in training.

    Args:
        system: what is said before all else and never forgotten; None: nothing.

    Attributes:
        end: the tokens that a model writes behind an answer.
    """

    def __init__(self, chat: "Chat", tokenizer: "Tokenizer", max_seq_len: int, system: str | None) -> None:
        self.chat, self.tokenizer, self.max_seq_len = chat, tokenizer, max_seq_len
        before, after = chat.template.split("{content}")
        self.begin = tokenizer.encode(before.replace("{role}", "assistant"))
        self.end = tokenizer.encode(after)
        self.system = [] if system is None else self._turn("system", system)
        self.turns: list[list[int]] = []

    def asked(self, text: str) -> list[int]:
        """The prompt for an answer to `text`, which is remembered; the oldest messages are left out that don't fit.

        Raises:
            ValueError: it does not fit alone.
        """
        turn = self._turn("user", text)
        room = self.max_seq_len - max(self.max_seq_len // ANSWER, 1) - len(self.system) - len(self.begin)
        if len(turn) > room:
            raise ValueError(f"the message has {len(turn)} tokens, and {max(room, 0)} fit")
        self.turns.append(turn)
        while sum(map(len, self.turns)) > room:
            del self.turns[:2]  # a question and its answer
        return [*self.system, *(token for turn in self.turns for token in turn), *self.begin]

    def answered(self, text: str) -> None:
        """Remember an answer."""
        self.turns.append(self._turn("assistant", text))

    def _turn(self, role: str, content: str) -> list[int]:
        return [token for text, _ in self.chat.turns(role, content) for token in self.tokenizer.encode(text)]


def _messages() -> Iterator[str]:
    asks = sys.stdin.isatty()
    if asks:
        import contextlib

        with contextlib.suppress(ImportError):  # arrows move in the line
            import readline  # noqa: F401
    while True:
        try:
            text = input("> " if asks else "")
        except EOFError:
            if asks:
                print()
            return
        if text.strip():
            yield text
