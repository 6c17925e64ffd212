"""Where a model looks: its attention weights as pictures, and as one page that opens without a network."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from triform.analysis.plots import save
from triform.layers.attention import capture_weights
from triform.models.predecessor import Predecessor
from triform.run.load import Loaded
from triform.tasks.seq2seq import Seq2Seq

TICKS = 40
"""Tokens beyond which a picture names none."""
DIGITS = 4


@dataclass(frozen=True)
class Maps:
    """The self- or cross-attention of a stack.

    Args:
        name: "encoder", "decoder" or "cross".
        queries, keys: what stands for the tokens that look, and for those that are looked at.
        weights: (layers, heads, queries, keys); those of a query sum to 1, or are 0 where it sees nothing.
    """

    name: str
    queries: list[str]
    keys: list[str]
    weights: np.ndarray


def attention_maps(loaded: Loaded, source: str, target: str | None) -> list[Maps]:
    """The maps of a model that reads a source, and a target behind it or in its decoder.

    Args:
        target: None: of a model of pairs what it answers itself, of others nothing.

    Raises:
        ValueError: the model reads images or has no place for a target, or the texts are longer than it takes.
    """
    model: Any = loaded.model
    tokens, family = loaded.tokenizer, loaded.family
    if getattr(getattr(model, "embedding", None), "reads", "tokens") != "tokens":
        raise ValueError(f"{loaded.folder.path} reads images, not text; name a run of text")
    if isinstance(model, Predecessor):
        raise ValueError(
            f"{loaded.folder.path} has no attention of several heads to draw; name a run of a Transformer, or look at "
            f"plots/alignment.png of this one, which there is where its decoder attends to the source"
        )
    if family == "encoder" and target is not None:
        raise ValueError("--target: an encoder reads one text; leave it out")
    ids = tokens.source.encode(source)
    if target is not None:
        written = tokens.encode(target)
    elif isinstance(loaded.objective, Seq2Seq):
        with torch.inference_mode():
            written = tokens.encode(loaded.objective.answer(model, [ids])[0])
    else:
        written = []
    inputs = _inputs(loaded, ids, written)
    stacks = [model.encoder, model.decoder] if family == "encoder_decoder" else [model]
    for row, stack in zip(inputs, stacks, strict=True):
        if len(row) > stack.max_seq_len:
            raise ValueError(
                f"--source, --target: {len(row)} tokens in a row are more than the {stack.max_seq_len} that the model "
                "reads; shorten the text"
            )
    device = next(model.parameters()).device
    with torch.inference_mode(), capture_weights(model) as captured:
        model(*(torch.tensor([row], device=device) for row in inputs))
    if family != "encoder_decoder":
        pieces = _pieces(tokens.pieces(inputs[0]))
        return [Maps(family, pieces, pieces, _stacked(list(captured.values())))]
    read, wrote = _pieces(tokens.source.pieces(inputs[0])), _pieces(tokens.pieces(inputs[1]))
    cross = {name: weights for name, weights in captured.items() if "cross" in name}
    own = {name: weights for name, weights in captured.items() if name not in cross}
    return [
        Maps("encoder", read, read, _stacked([w for name, w in own.items() if name.startswith("encoder")])),
        Maps("decoder", wrote, wrote, _stacked([w for name, w in own.items() if not name.startswith("encoder")])),
        Maps("cross", wrote, read, _stacked(list(cross.values()))),
    ]


def _inputs(loaded: Loaded, source: list[int], target: list[int]) -> list[list[int]]:
    """The rows of token ids that the model reads, with the marks that it learned them with."""
    tokens = loaded.tokenizer
    if loaded.family == "encoder":
        return [[tokens.cls_id, *source, tokens.sep_id]]
    if loaded.family == "encoder_decoder":
        return [[*source, tokens.source.eos_id], [tokens.start_id, *target]]
    between = [tokens.sep_id] if isinstance(loaded.objective, Seq2Seq) else []
    return [[*source, *between, *target] or [tokens.eos_id]]


def _stacked(layers: Sequence[Tensor]) -> np.ndarray:
    return torch.stack([weights[0].float().cpu() for weights in layers]).numpy()


def _pieces(pieces: Sequence[str]) -> list[str]:
    """With a mark for what would not be seen."""
    return [
        re.sub(r"[\n\r]", "\u21b5", piece).replace("\t", "\u21e5").replace(" ", "\u2423") or "\u00b7"
        for piece in pieces
    ]


def draw(maps: Maps, out: Path) -> None:
    """A picture: a row of panels for each layer, a panel for each head. White is no attention, dark blue all of it."""
    n_layers, n_heads, n_queries, n_keys = maps.weights.shape
    side = min(max(n_queries, n_keys), TICKS) * 0.13 + 0.9
    figure = Figure(figsize=(side * n_heads, side * n_layers + 0.4), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(n_layers, n_heads, squeeze=False, sharex=True, sharey=True)
    for layer in range(n_layers):
        for head in range(n_heads):
            panel = panels[layer][head]
            panel.imshow(maps.weights[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="none")
            panel.set_title(f"layer {layer}, head {head}", fontsize=7)
            for axis, pieces, turn in ((panel.xaxis, maps.keys, 90), (panel.yaxis, maps.queries, 0)):
                shown = pieces if len(pieces) <= TICKS else []
                # A dollar would begin a formula.
                axis.set_ticks(
                    range(len(shown)), [piece.replace("$", r"\$") for piece in shown], rotation=turn, fontsize=6
                )
    figure.suptitle(f"{maps.name}: from tokens that look (rows) to what they look at (columns)", fontsize=8)
    save(figure, out)


def page(maps: Sequence[Maps], title: str) -> str:
    """One page of HTML: choose map, layer and head; a cell under the pointer says its tokens and weight."""
    data = [
        {
            "name": one.name,
            "queries": one.queries,
            "keys": one.keys,
            "weights": np.round(one.weights.astype(np.float64), DIGITS).tolist(),
        }
        for one in maps
    ]
    here = Path(__file__).parent
    template = (here / "attention.html").read_text(encoding="utf-8")
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    escaped = title.replace("&", "&amp;").replace("<", "&lt;")
    # Once through the template, so that no text is taken for a place of another.
    return re.sub("__(TITLE|DATA)__", lambda match: {"TITLE": escaped, "DATA": text}[match[1]], template)
