"""What a config comes to before anything is trained: its model on the meta device, its steps and tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from triform.data.prepare import Prepared
from triform.data.tokenizers import Tokenizer
from triform.models.blank import blank
from triform.run.build import locate
from triform.run.parts import data_module, loader, model_factory, n_tokens, objective_of
from triform.training.budget import ENDLESS, budget

if TYPE_CHECKING:
    from triform.data.module import DataModule

ASSUMED_TOKENS, ASSUMED_LABELS = 256, 2
LABELLED = frozenset(("labelled", "multilabelled", "tagged", "images"))
"""Kinds of data whose classes a model must know."""


@dataclass(frozen=True)
class Sketch:
    """What a model is built with besides its own config.

    Args:
        n_tokens: of tokenizer and task.
        arguments: what the task wants the model to be built with.
        seq_len: tokens of a row of training data, at most.
        notes: what had to be assumed, in sentences.
    """

    n_tokens: int
    arguments: Mapping[str, Any]
    seq_len: int
    notes: Sequence[str]

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        """The model of a config, on the meta device.

        Raises:
            ValueError: a size or part is refused.
        """
        with blank():
            return model_factory(config, self.n_tokens, self.arguments)()


def sketch(config: Mapping[str, Any], tokenizer: Tokenizer | None, labels: Sequence[str] | None) -> Sketch:
    """What is known of a config's model, and assumed where its data is not prepared yet.

    Args:
        tokenizer: of its data; None: not known.
        labels: names of the classes; None: not known, or there are none.
    """
    notes = []
    given, rows = config["model"].get("vocab_size"), config["tokenizer"].get("vocab_size")
    count = given or rows or ASSUMED_TOKENS
    if tokenizer is None and given is None:
        notes.append(f"The data is not prepared yet: {count} tokens assumed; model.vocab_size=N sets it.")
    task = locate(config["task"]["_target_"], config["trust"], "task")
    if labels is None and LABELLED.intersection(task.kinds):
        labels = [str(i) for i in range(ASSUMED_LABELS)]
        notes.append(f"The data is not prepared yet: {len(labels)} labels assumed.")
    arguments, seq_len = {}, config["data"]["seq_len"]
    if tokenizer is not None or LABELLED.union({"scored"}).intersection(task.kinds):  # which are no tokens
        objective = objective_of(config, tokenizer, labels)
        arguments, seq_len = objective.model_arguments(), loader(config, objective)["seq_len"]
        count = count + objective.extra_tokens if tokenizer is None else n_tokens(tokenizer, objective)
    return Sketch(count, arguments, seq_len, notes)


@dataclass(frozen=True)
class Effort:
    """How long a run trains.

    Args:
        steps: optimizer steps; None: until the time is up, or not known before the data is prepared.
        tokens: of the data read in them (source and target), neither padding nor a task's own marks counted; None:
            likewise.
        is_exact: counted over the data; else at most, every row being taken for full and epochs for endless.
        hours: after which it ends earlier; None: it does not.
    """

    steps: int | None
    tokens: int | None
    is_exact: bool
    hours: float | None


LIMITS = ("max_steps", "max_epochs", "max_tokens", "max_hours")
"""Keys of `trainer` that end a run."""


def effort(config: Mapping[str, Any], prepared: Prepared | None) -> Effort:
    """Steps and tokens of a run, of one whose data is not prepared as far as its limits tell.

    Raises:
        ValueError: the data does not fit the rows or batches asked for.
    """
    limits = {name: config["trainer"][name] for name in LIMITS}
    hours = limits["max_hours"]
    if prepared is not None:
        order = module(config, prepared).order
        steps = budget(order, **limits).max_steps
        if steps >= ENDLESS:
            return Effort(None, None, True, hours)
        return Effort(steps, order.tokens_in(steps), order.is_exact, hours)
    task = locate(config["task"]["_target_"], config["trust"], "task")
    sides = 2 if task.kinds == ("pairs",) else 1
    data = config["data"]
    each = data["batch_tokens"] or sides * data["batch_size"] * data["seq_len"]
    given = [limits["max_steps"], None if limits["max_tokens"] is None else -(-limits["max_tokens"] // each)]
    most = min((limit for limit in given if limit is not None), default=None)
    return Effort(most, None if most is None else most * each, False, hours)


def module(config: Mapping[str, Any], prepared: Prepared) -> "DataModule":
    """The loaders of a run's data."""
    return data_module(config, prepared, objective_of(config, prepared.tokenizer, prepared.labels))
