"""`triform classify RUN < in > out`."""

import json

from triform.commands.lines import add_batch_size, answer_lines, check_batch_size
from triform.commands.parser import parser
from triform.run.errors import BadInput


def main(arguments: list[str]) -> int:
    """Write what a trained model says of each line."""
    made = parser(
        "classify",
        "The class of each line of standard input, several after commas, its score, or the tag of each of its words: "
        "one line out for each line in.",
    )
    add_batch_size(made)
    made.add_argument(
        "--probabilities", action="store_true", help="of each class, as a JSON object a line, instead of the likeliest"
    )
    options = made.parse_args([word for word in arguments if not word.startswith("traceback=")])  # for who calls
    check_batch_size(options.batch_size)

    import torch

    from triform.run.load import open_run
    from triform.tasks.classification import Classification
    from triform.tasks.multi_label import MultiLabel
    from triform.tasks.regression import Regression
    from triform.tasks.token_classification import TokenClassification
    from triform.training.hardware import device_type

    loaded = open_run(options.run, options.trust)
    task = loaded.objective
    if not isinstance(task, Classification | MultiLabel | Regression | TokenClassification):
        raise BadInput(
            f"{options.run}: a model trained on {type(task).__name__} chooses no class of a text; classify with one of "
            "task=classification, multi_label, regression or token_classification"
        )
    if options.probabilities and isinstance(task, Regression | TokenClassification):
        gives = "a score, which has none" if isinstance(task, Regression) else "tags alone"
        raise BadInput(f"--probabilities: {options.run} gives {gives}; leave it out")
    model = loaded.model.to(device_type(loaded.config["trainer"]["accelerator"]))

    def answer(rows: list[list[int]], texts: list[str]) -> list[str]:
        with torch.inference_mode():
            if isinstance(task, TokenClassification):
                return task.says(model, texts)
            if not options.probabilities or isinstance(task, Regression):
                return task.says(model, rows)
            labels, chances = task.labels, task.probabilities(model, rows)
        named = [dict(zip(labels, row, strict=True)) for row in chances.double().tolist()]
        return [json.dumps(row, ensure_ascii=False) for row in named]

    encode = task.encode if isinstance(task, TokenClassification) else None
    answer_lines(loaded.tokenizer, answer, task.room(), options.batch_size, encode)
    return 0
