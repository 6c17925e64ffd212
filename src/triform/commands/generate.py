"""`triform generate RUN`."""

import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from triform.commands.lines import given_lines, text_of
from triform.commands.parser import parser
from triform.run.errors import BadInput

if TYPE_CHECKING:
    from triform.commands.stream import Stream
    from triform.data.tokenizers import Tokenizer
    from triform.run.load import Loaded

DRAW = {"temperature": 0.8, "top_k": None, "top_p": None, "min_p": None, "seed": 0}
"""How a continuation is drawn where nothing is said."""

SEARCH = {"num_beams": 1, "length_penalty": 1.0}
"""How it is searched for instead, with more than one beam."""

WRITE = {"max_new_tokens": 200, "repetition_penalty": 1.0, **DRAW, **SEARCH}


def main(arguments: list[str]) -> int:
    """Print what a trained model makes of each prompt."""
    made = parser(
        "generate",
        "A decoder continues a prompt; a model of pairs answers it. Prompts: --prompt, or lines of standard input.",
    )
    made.add_argument("--prompt", action="append", help="a text; may be given more than once")
    add_draw(made)
    options = made.parse_args(arguments)
    check_draw(options)

    from triform.models.heads import LanguageModelHead
    from triform.run.load import open_run

    loaded = open_run(options.run, options.trust)
    prompts = iter(options.prompt) if options.prompt else _lines()
    answer = getattr(loaded.objective, "answer", None)
    continues = loaded.family == "decoder" and isinstance(loaded.model.head, LanguageModelHead)
    if answer is None and not continues:
        task = type(loaded.objective).__name__
        raise BadInput(
            f"{options.run}: a model of family {loaded.family} trained on {task} writes nothing; "
            "measure it with triform evaluate"
        )
    given = {name: value for name, value in vars(options).items() if name in WRITE and value is not None}
    if answer is not None and given:
        flag = next(iter(given)).replace("_", "-")
        raise BadInput(f"--{flag}: a model of pairs gives its likeliest answer, nothing is drawn; leave it out")
    for prompt in prompts:
        if answer is not None:
            _answer(loaded, answer, prompt)
        else:
            print(prompt, end="", flush=True)
            _continue(loaded, prompt, WRITE | given)
    return 0


def add_draw(made: ArgumentParser) -> None:
    """The options of `WRITE`."""
    of_draw = made.add_argument_group("of a decoder that continues (a model of pairs gives its likeliest answer)")
    of_draw.add_argument("--max-new-tokens", type=int, metavar="N", help="tokens at most (default: 200)")
    of_draw.add_argument("--temperature", type=float, help="0 takes the likeliest token (default: 0.8)")
    of_draw.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens only")
    of_draw.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens that make up P only")
    of_draw.add_argument(
        "--min-p", type=float, metavar="P", help="draw from those at least P times as likely as the first"
    )
    of_draw.add_argument(
        "--repetition-penalty", type=float, metavar="X", help="above 1 makes tokens that are there already less likely"
    )
    of_draw.add_argument("--num-beams", type=int, metavar="N", help="search with N beams and draw nothing (default: 1)")
    of_draw.add_argument(
        "--length-penalty", type=float, metavar="X", help="above 0 lets the search favour long texts (default: 1)"
    )
    of_draw.add_argument("--seed", type=int, help="of the draw (default: 0)")


def check_draw(options: Namespace) -> None:
    """Refuse what means nothing, before a model is loaded for it.

    Raises:
        BadInput: it names the option.
    """
    for name, fits, wanted in (
        ("max_new_tokens", lambda value: value >= 1, "at least 1"),
        ("temperature", lambda value: 0 <= value < math.inf, "at least 0"),
        ("top_k", lambda value: value >= 1, "at least 1"),
        ("top_p", lambda value: 0 < value <= 1, "above 0 and at most 1"),
        ("min_p", lambda value: 0 <= value <= 1, "at least 0 and at most 1"),
        ("repetition_penalty", lambda value: 0 < value < math.inf, "above 0"),
        ("num_beams", lambda value: value >= 1, "at least 1"),
        ("length_penalty", math.isfinite, "a finite number"),
        ("seed", lambda value: 0 <= value < 2**63, "at least 0 and below 2 ** 63"),
    ):
        value = getattr(options, name)
        if value is not None and not fits(value):
            raise BadInput(f"--{name.replace('_', '-')} {value}: set it to {wanted}, or leave it out")
    searches = options.num_beams is not None and options.num_beams > 1
    idle = next((name for name in DRAW if getattr(options, name) is not None), None)
    if searches and idle is not None:
        raise BadInput(f"--{idle.replace('_', '-')}: a search draws nothing; leave it out, or --num-beams")
    if options.length_penalty is not None and not searches:
        raise BadInput("--length-penalty: only a search has one; set --num-beams above 1, or leave it out")


def _lines() -> Iterator[str]:
    source = given_lines()
    if sys.stdin.isatty():
        print("one prompt a line; end with Ctrl-D", file=sys.stderr)
    for number, line in enumerate(source, start=1):
        text = text_of(line, number)
        if text.strip():
            yield text


def _read(tokenizer: "Tokenizer", prompt: str, room: int | None, end: bool) -> list[int]:
    """The tokens of a prompt that a model reads; what it does not is said.

    Args:
        room: tokens that it can read; None: any number.
        end: keep the end of a longer one, not its beginning.
    """
    ids = tokenizer.encode(prompt)
    if tokenizer.unk_id in ids:
        print("warning: the prompt holds something that the tokenizer does not know", file=sys.stderr)
    if room is None or len(ids) <= room:
        return ids
    kept = "last" if end else "first"
    print(f"warning: the prompt has {len(ids)} tokens; the {kept} {room} are read", file=sys.stderr)
    return ids[-room:] if end else ids[:room]


def _answer(loaded: "Loaded", answer: Callable[..., list[str]], prompt: str) -> None:
    """Print what a model of pairs makes of a prompt while it is written, and an end of line."""
    from triform.commands.stream import Stream

    ids = _read(loaded.tokenizer.source, prompt, loaded.objective.room(), end=False)
    stream = Stream(loaded.tokenizer, lambda text: print(text, end="", flush=True))
    text = answer(loaded.model, [ids], on_token=stream)[0]
    if not stream.ids:  # nothing was told, as where the source is seen both ways
        print(text, end="")
    stream.close()
    print(flush=True)


def _continue(loaded: "Loaded", prompt: str, how: Mapping[str, Any]) -> None:
    """Print what follows a prompt while it is written, and an end of line."""
    from triform.commands.stream import Stream

    tokens = loaded.tokenizer
    room = int(loaded.config["model"]["max_seq_len"]) - 1
    ids = _read(tokens, prompt, room, end=True) or [tokens.eos_id]  # a document begins after the end of another one
    stream = Stream(tokens, lambda text: print(text, end="", flush=True))
    out = write(loaded, ids, how, stream)
    if how["num_beams"] > 1:
        print(tokens.decode(out), end="")
    stream.close()
    print(flush=True)


def write(loaded: "Loaded", ids: list[int], how: Mapping[str, Any], stream: "Stream") -> list[int]:
    """The tokens that a decoder writes behind `ids`.

    Args:
        how: the values of `WRITE`.
        stream: is told them as they come, but for those of a search.
    """
    import torch

    from triform.generation import generate

    tokens = loaded.tokenizer
    out = generate(
        loaded.model,
        torch.tensor([ids], device=next(loaded.model.parameters()).device),
        max_new_tokens=how["max_new_tokens"],
        repetition_penalty=how["repetition_penalty"],
        num_beams=how["num_beams"],
        length_penalty=how["length_penalty"],
        do_sample=how["temperature"] > 0 and how["num_beams"] == 1,
        temperature=how["temperature"] or 1.0,
        top_k=how["top_k"],
        top_p=how["top_p"],
        min_p=how["min_p"],
        eos_id=tokens.eos_id,
        pad_id=tokens.pad_id,
        vocab_size=tokens.vocab_size,
        seed=how["seed"],
        on_token=stream,
    )
    return [int(token) for token in out[0, len(ids) :]]
