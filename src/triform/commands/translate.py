"""`triform translate RUN < in > out`."""

import math

from triform.commands.lines import add_batch_size, answer_lines, check_batch_size
from triform.commands.parser import parser
from triform.run.errors import BadInput


def main(arguments: list[str]) -> int:
    """Write the likeliest target of each line."""
    made = parser(
        "translate",
        "The likeliest target of each line of standard input, by a model of pairs: one line out for each line in.",
    )
    add_batch_size(made)
    made.add_argument(
        "--num-beams", type=int, default=1, metavar="N", help="search with N beams (default: 1, greedily)"
    )
    made.add_argument(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="P",
        help="a search divides the log-probability of a target by its length to the power of P: above 1 longer targets "
        "win more often, below 1 shorter ones (default: 1)",
    )
    options = made.parse_args([word for word in arguments if not word.startswith("traceback=")])  # for who calls
    check_batch_size(options.batch_size)
    if options.num_beams < 1:
        raise BadInput(f"--num-beams {options.num_beams}: set it to at least 1, or leave it out")
    if not math.isfinite(options.length_penalty):
        raise BadInput(f"--length-penalty {options.length_penalty}: set it to a finite number, or leave it out")
    if options.length_penalty != 1 and options.num_beams == 1:
        raise BadInput("--length-penalty: only a search has one; set --num-beams above 1")

    from triform.run.load import open_run
    from triform.tasks.seq2seq import Seq2Seq
    from triform.training.hardware import device_type

    loaded = open_run(options.run, options.trust)
    task = loaded.objective
    if not isinstance(task, Seq2Seq):
        raise BadInput(
            f"{options.run}: a model trained on {type(task).__name__} has learnt no targets; translate with one of "
            "task=seq2seq, or see triform generate and triform classify"
        )
    model = loaded.model.to(device_type(loaded.config["trainer"]["accelerator"]))
    answer_lines(
        loaded.tokenizer.source,
        lambda rows, texts: task.answer(model, rows, options.num_beams, options.length_penalty),
        task.room(),
        options.batch_size,
    )
    return 0
