"""What a run that has finished leaves to look at: figures beside baselines, examples, pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from triform.analysis.plots import alignment, loss_curve
from triform.analysis.report import as_text, choose, print_report
from triform.analysis.runs import read_run
from triform.data.baselines import label_baselines, text_baselines
from triform.data.module import training_examples, training_order
from triform.data.prepare import Prepared, Split
from triform.data.rows import TextRows
from triform.layers.attention import capture_weights
from triform.models.predecessor import Predecessor
from triform.run.folder import RunFolder
from triform.run.load import Loaded, open_run
from triform.run.parts import loader, own_data
from triform.training.hardware import device_type

N_JUDGED, N_SHOWN, N_PICTURED = 200, 4, 3
"""Held-out examples that are answered to find some right and some wrong, that are printed as samples where nothing
is right or wrong, and that are drawn."""


def finish(folder: RunFolder, trust: Sequence[str]) -> None:
    """Print the report of a finished run and write samples.txt and plots/ in its folder.

    Args:
        trust: packages besides triform's own that the run's config may name.
    """
    run = read_run(folder.path)
    loaded = open_run(folder.path, trust)
    prepared = own_data(folder, loaded.config)
    loaded.model.to(device_type(loaded.config["trainer"]["accelerator"]))
    split = "test" if loaded.config["trainer"]["test"] and "test" in prepared.splits else "validation"
    settings = loader(loaded.config, loaded.objective)
    examples = learnt(prepared, loaded.config, settings) or held_out(prepared.splits[split], settings["seq_len"])
    with torch.inference_mode():
        samples = loaded.objective.samples(loaded.model, examples)
    judged = samples[0].correct is not None if samples else False
    folder.samples.write_text(as_text(samples if judged else samples[:N_SHOWN]), encoding="utf-8")
    folder.plots.mkdir(exist_ok=True)
    pictures = [folder.plots / "loss.png"]
    loss_curve(folder.metrics, pictures[0])
    if loaded.family == "encoder_decoder" and prepared.kind == "pairs":
        picture = folder.plots / "alignment.png"
        pictures += [picture] if draw_alignment(loaded, examples[:N_PICTURED], picture) else []
    console = Console()
    if loaded.config["trainer"]["overfit"]:
        console.print("Figures and samples are of the one batch that was trained on.", style="bold")
    print_report(
        console,
        headline(run.summary),
        baselines(prepared, split, run.summary.get("final") or {}),
        choose(samples, right=N_SHOWN, wrong=N_SHOWN),
    )
    console.print()
    for path in (*pictures, folder.samples):
        console.print(f"  {path.relative_to(folder.path)}", style="dim", highlight=False)
    if not {"train_files", "path", "sources"} & set(loaded.config["data"]):
        console.print(
            "  Built-in data is a demonstration; your own: data=text, data=pairs or data=labelled.",
            style="dim",
            soft_wrap=True,
        )


def held_out(split: Split, seq_len: int) -> list[dict[str, Any]]:
    """Examples to answer: from the beginning of the split, or rows spread over a running text."""
    if split.kind != "text":
        return [split[i] for i in range(min(N_JUDGED, len(split)))]
    rows = TextRows(split, seq_len, offset=0)
    n = min(N_SHOWN, len(rows))
    return [rows[i * len(rows) // n] for i in range(n)]


def learnt(prepared: Prepared, config: Mapping[str, Any], loader: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The batch that a run with `trainer.overfit` was trained on; of others nothing.

    Args:
        loader: settings of its data loader.
    """
    if not config["trainer"]["overfit"]:
        return []
    split = prepared.splits["train"]
    seq_len, packing, seed = loader["seq_len"], loader["packing"], config["seed"]
    examples = training_examples(prepared, seq_len, seed, packing, loader["weights"])
    order = training_order(examples, loader["batch_size"], loader["batch_tokens"], seed, packing)
    return [examples.read(0, int(i))[0] for i in order.batch(0)[1][: N_JUDGED if split.kind != "text" else N_SHOWN]]


def headline(summary: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a run's end, in the order in which people ask for them."""
    figures = dict(summary.get("final", {}))
    best = summary.get("best") or {}
    if best.get("step") is not None:
        figures["best step"] = best["step"]
    figures |= {name: summary[name] for name in ("parameters", "tokens", "seconds", "tokens_per_second")}
    return {name: value for name, value in figures.items() if value is not None}


def baselines(prepared: Prepared, split: str, figures: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Baseline -> figure -> value on the same split, for those of the run's `figures` that have one."""
    train, held_out = prepared.splits["train"], prepared.splits[split]
    if prepared.kind == "text" and f"{split}/bits_per_byte" in figures:
        return {name: {f"{split}/bits_per_byte": bits} for name, bits in text_baselines(train, held_out).items()}
    if prepared.kind == "labelled" and f"{split}/accuracy" in figures:
        found = label_baselines(train, held_out)
        return {name.replace("_", " "): {f"{split}/accuracy": share} for name, share in found.items()}
    return {}


def draw_alignment(loaded: Loaded, examples: Sequence[Mapping[str, Any]], out: Path) -> bool:
    """The last layer's cross-attention, a mean over its heads, while the right target is read; False: there is none."""
    weights, sources, targets = [], [], []
    tokens, device = loaded.tokenizer, next(loaded.model.parameters()).device
    for example in examples:
        batch = loaded.objective.collate([example], [(0, 0)])
        batch = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
        seen = _looked(loaded, batch)
        if seen is None:
            return False
        weights.append(seen[0].float().cpu().numpy())
        sources.append(tokens.source.pieces(batch["input_ids"][0].tolist()))
        targets.append(tokens.pieces(batch["labels"][0].tolist()))
    alignment(weights, sources, targets, out)
    return True


def _looked(loaded: Loaded, batch: Mapping[str, Any]) -> torch.Tensor | None:
    """What each token of the targets attends to in its source."""
    if isinstance(loaded.model, Predecessor):
        return loaded.model.alignment(batch["input_ids"], batch["decoder_input_ids"])
    with torch.inference_mode(), capture_weights(loaded.model) as captured:
        loaded.objective.hidden(loaded.model, dict(batch))
    return captured[[name for name in captured if "cross" in name][-1]].mean(1)
