"""The same weights, the same logits: a tiny random model of `transformers` against what is read of its folder."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from triform.run.pretrained import from_pretrained, save_pretrained

VOCAB_SIZE = 37


def randomised(model: nn.Module) -> nn.Module:
    """Every parameter drawn anew, gains around 1, so that none is 0 or 1 by chance."""
    generator = torch.Generator().manual_seed(0)
    for name, value in model.named_parameters():
        gain = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        value.data.normal_(gain, 0.3, generator=generator)
    return model.eval()


def ids(*shape: int, seed: int = 0) -> Tensor:
    """Tokens above the special ones."""
    return torch.randint(7, VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(seed))


def close(ours: Tensor, theirs: Tensor) -> None:
    """Within 1e-5 of the largest number, or of 1."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * max(1.0, float(theirs.abs().max())))


def padded(side: str) -> tuple[Tensor, Tensor]:
    """Three rows of 9, 5 and 1 tokens, filled up with 1 on one side, and which tokens are real."""
    lengths = torch.tensor([9, 5, 1])[:, None]
    mask = torch.arange(9) < lengths if side == "right" else torch.arange(9) >= 9 - lengths
    return torch.where(mask, ids(3, 9, seed=1), 1), mask


@torch.no_grad()
def check_single_stack(theirs: nn.Module, folder: Path, **arguments: Any) -> nn.Module:
    """Reads what `theirs` saves and compares logits: whole rows, padded rows, and of a decoder under a cache."""
    theirs.save_pretrained(folder)
    ours, _ = from_pretrained(folder)
    read = lambda x, **more: theirs(x, **more, **arguments).logits  # noqa: E731
    close(ours(ids(2, 11)).logits, read(ids(2, 11)))
    for side in ("right", "left"):
        x, mask = padded(side)
        # `transformers` counts positions from the first column of a padded row unless it is told them.
        position = {} if ours.family == "encoder" else {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
        if ours.family == "encoder" and side == "left":
            continue
        close(ours(x, mask).logits[mask], read(x, attention_mask=mask.long(), **position)[mask])
    if ours.family == "decoder":
        cache = ours.new_cache(11)
        pieces = [ours(piece, cache=cache).logits for piece in ids(2, 11).split([4, 1, 3, 1, 2], dim=1)]
        close(torch.cat(pieces, dim=1), read(ids(2, 11)))
    return ours


@torch.no_grad()
def check_two_stacks(theirs: nn.Module, folder: Path) -> nn.Module:
    """The same for an encoder-decoder, with padding on both sides and a cache."""
    theirs.save_pretrained(folder)
    ours, _ = from_pretrained(folder)
    target = ids(2, 6, seed=2)
    expected = theirs(input_ids=ids(2, 11), decoder_input_ids=target).logits
    close(ours(ids(2, 11), target).logits, expected)
    x, mask = padded("right")
    y, y_mask = padded("right")
    y, y_mask = y[:, :7], y_mask[:, :7]
    there = theirs(input_ids=x, attention_mask=mask.long(), decoder_input_ids=y, decoder_attention_mask=y_mask.long())
    close(ours(x, y, mask, y_mask).logits[y_mask], there.logits[y_mask])
    memory, cache = ours.encode(ids(2, 11)), ours.new_cache(6)
    pieces = [ours.decode(piece, memory, cache=cache).logits for piece in target.split([2, 1, 3], dim=1)]
    close(torch.cat(pieces, dim=1), expected)
    return ours


@torch.no_grad()
def check_export(ours: nn.Module, kind: type, folder: Path, *inputs: Tensor) -> dict[str, Any]:
    """Writes a model, reads it as the class `kind` of `transformers` and here again; returns its config.json."""
    save_pretrained(ours, folder)
    theirs, info = kind.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not any(info.values()), info
    read = theirs.eval()(input_ids=inputs[0], **({"decoder_input_ids": inputs[1]} if len(inputs) > 1 else {}))
    close(ours(*inputs).logits, read.logits)
    again, _ = from_pretrained(folder)
    same_weights(again, ours)
    twice = folder.parent / f"{folder.name}_again"
    save_pretrained(again, twice)
    first, second = (load_file(where / "model.safetensors") for where in (folder, twice))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def same_weights(model: nn.Module, other: nn.Module) -> None:
    """Bit by bit."""
    assert list(model.state_dict()) == list(other.state_dict())
    for name, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def changed_config(folder: Path, **changed: Any) -> None:
    """Sets keys of a folder's config.json; None takes one out."""
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), **changed}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
