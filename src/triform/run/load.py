"""A trained model from the folder of its run or export."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from triform.data.tokenizers import Tokenizer
from triform.models.blank import blank
from triform.models.weights import check_weights
from triform.run.check import check_record
from triform.run.errors import BadInput, one_line
from triform.run.folder import RunFolder, read_labels, resolve_run
from triform.run.parts import model_factory, n_tokens, objective_of
from triform.tasks.objective import Objective
from triform.training.reading import BEST, LAST, read_checkpoint


@dataclass(frozen=True)
class Loaded:
    """A run that can be used: its config, the tokenizer, the task and the model in evaluation mode."""

    folder: RunFolder
    config: dict[str, Any]
    tokenizer: Tokenizer
    objective: Objective
    model: nn.Module

    @property
    def family(self) -> str:
        """`encoder`, `decoder` or `encoder_decoder`."""
        return str(self.model.family)


def load(folder: str | Path, trust: Sequence[str] = ()) -> tuple[nn.Module, Tokenizer | None]:
    """Model and tokenizer of a run or an export, the model with its best weights, in evaluation mode, on the CPU.

    Weights are read without unpickling objects, and the config builds only classes of triform, torch.nn and what
    `trust` names.

    Args:
        folder: printed as `run: FOLDER`, or one of its checkpoints (`FOLDER/checkpoints/last.ckpt`), or what
            `save_pretrained` wrote.
        trust: packages of your own that the config names.

    Returns:
        The tokenizer is None where an export has none.

    Raises:
        ValueError: there is no such run, checkpoint or export, or it names a class that is not trusted.
    """
    path = Path(folder).expanduser()
    if (path / "config.json").is_file() and not (path / "config.yaml").is_file():
        from triform.run.pretrained import from_pretrained

        return from_pretrained(path, trust=trust)
    loaded = open_run(folder, trust)
    return loaded.model, loaded.tokenizer


def open_run(run: str | Path, trust: Sequence[str] = ()) -> Loaded:
    """Everything of a run but its data; see `load`."""
    folder = resolve_run(run)
    config = {**folder.read_config(), "trust": list(trust)}
    check_record(config, folder.config)
    tokenizer = Tokenizer.load(folder.tokenizer)
    try:
        objective = objective_of(config, tokenizer, read_labels(folder))
        with blank():
            model = model_factory(config, n_tokens(tokenizer, objective), objective.model_arguments())()
    except TypeError as error:  # a key of a part is missing, or is none
        raise BadInput(f"{folder.config}: {one_line(error)}; put the file back as the run wrote it") from error
    path = checkpoint(folder, Path(run))
    state = weights(path)
    check_weights(model, state, str(path))
    model.to_empty(device="cpu")
    model.load_state_dict(state)
    return Loaded(folder, config, tokenizer, objective, model.eval())


def checkpoint(folder: RunFolder, given: Path) -> Path:
    """The checkpoint that `given` names: itself, with or without its suffix; else the best, else the last one.

    Raises:
        BadInput: the run has none.
    """
    given = given.expanduser().parent.resolve() / given.name  # itself may be a link to a folder
    if given.parent == folder.checkpoints:
        return given if given.suffix else given.with_suffix(".ckpt")
    for name in (BEST, LAST):
        if (folder.checkpoints / name).exists():
            return folder.checkpoints / name
    raise BadInput(f"{folder.path} has no checkpoint yet; train on with: triform resume {folder.path}")


def weights(path: Path) -> dict[str, Tensor]:
    """The model's weights in a checkpoint, by the names that the model has for them."""
    state = read_checkpoint(path)["state_dict"]
    return {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
