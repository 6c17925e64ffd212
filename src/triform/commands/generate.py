"""`triform generate RUN`."""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from triform.commands.parser import parser
from triform.run.errors import BadInput

if TYPE_CHECKING:
    from triform.run.load import Loaded


def main(arguments: list[str]) -> int:
    """Print what a trained model makes of each prompt."""
    made = parser(
        "generate",
        "A decoder continues a prompt; a model of pairs answers it. Prompts: --prompt, or lines of standard input.",
    )
    made.add_argument("--prompt", action="append", help="a text; may be given more than once")
    made.add_argument("--max-new-tokens", type=int, default=200, metavar="N", help="tokens at most (default: 200)")
    made.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token (default: 0.8)")
    made.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens only")
    made.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens that make up P only")
    made.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    options = made.parse_args(arguments)

    from triform.run.load import open_run

    loaded = open_run(options.run, options.trust)
    prompts = iter(options.prompt) if options.prompt else _lines()
    answer = getattr(loaded.objective, "answer", None)
    if answer is None and loaded.family != "decoder":
        task = type(loaded.objective).__name__
        raise BadInput(
            f"{options.run}: an {loaded.family} trained on {task} writes nothing; measure it with triform evaluate"
        )
    for prompt in prompts:
        if answer is not None:
            print(answer(loaded.model, [loaded.tokenizer.encode(prompt)])[0], flush=True)
        else:
            print(prompt + _continuation(loaded, prompt, options), flush=True)
    return 0


def _lines() -> Iterator[str]:
    if sys.stdin.isatty():
        print("one prompt a line; end with Ctrl-D", file=sys.stderr)
    for line in sys.stdin:
        if line.strip():
            yield line.rstrip("\n")


def _continuation(loaded: "Loaded", prompt: str, options: argparse.Namespace) -> str:
    import torch

    from triform.generation import generate

    tokens = loaded.tokenizer
    ids = tokens.encode(prompt) or [tokens.eos_id]  # a document begins after the end of another one
    room = getattr(loaded.model, "max_seq_len", len(ids)) - 1
    ids = ids[-room:]
    out = generate(
        loaded.model,
        torch.tensor([ids]),
        max_new_tokens=options.max_new_tokens,
        do_sample=options.temperature > 0,
        temperature=options.temperature or 1.0,
        top_k=options.top_k,
        top_p=options.top_p,
        eos_id=tokens.eos_id,
        pad_id=tokens.pad_id,
        vocab_size=tokens.vocab_size,
        seed=options.seed,
    )
    return tokens.decode(out[0, len(ids) :].tolist())
