"""Each task, in each family that it trains, learns one batch by heart."""

from typing import Any

import numpy as np
import pytest
import torch

from triform.data.tokenizers import Tokenizer
from triform.run.build import build, locate
from triform.run.compose import compose
from triform.run.folder import read_mapping
from triform.run.help import conf_dir
from triform.tasks.objective import Objective

TEXT = "the cat sat. a dog ran away! who, me? yes you"
SIZES = ("model.d_model=32", "model.n_heads=2", "model.n_layers=2", "model.d_ff=48", "model.dropout=0")


def texts(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    ids = np.array(tokenizer.encode(TEXT))
    return [{"ids": ids[:20]}, {"ids": ids[13:27], "documents": np.array([0] * 6 + [1] * 8)}]


def classes(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """For each kind of class; a task reads its own."""
    ids = [np.array(tokenizer.encode(text)) for text in ("a cat", "dogs and cats", "no")]
    labels = [np.array([0, 2]), np.array([1]), np.array([], dtype=np.int64)]
    return [
        {"ids": row, "label": i, "labels": labels[i], "score": i * 1.5 - 1, "tags": tags_of(row, tokenizer)}
        for i, row in enumerate(ids)
    ]


def tags_of(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """The number of letters of each word, at its first token."""
    words = tokenizer.decode(ids).split(" ")
    return np.array([tag for word in words for tag in [len(word) % 3, *[-100] * len(word)]][:-1])


def conversations(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    ids = [np.array(tokenizer.encode(text)) for text in ("who are you-a cat,", "and who-a dog,")]
    return [{"ids": row, "learned": np.cumsum(row == tokenizer.encode("-")[0]) > 0} for row in ids]


def pairs(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    texts = (("a cat", "eine katze"), ("dogs", "hunde"))
    return [
        {"source_ids": np.array(tokenizer.encode(a)), "target_ids": np.array(tokenizer.encode(b))} for a, b in texts
    ]


EXAMPLES = dict.fromkeys(("labelled", "multilabelled", "scored", "tagged"), classes) | {
    "text": texts,
    "pairs": pairs,
    "chat": conversations,
}
CASES = [
    ("causal_lm", "decoder"),
    ("masked_lm", "encoder"),
    ("prefix_lm", "decoder"),
    ("prefix_lm", "encoder_decoder"),
    ("span_corruption", "decoder"),
    ("span_corruption", "encoder_decoder"),
    ("denoising", "decoder"),
    ("denoising", "encoder_decoder"),
    ("seq2seq", "decoder"),
    ("seq2seq", "encoder_decoder"),
    *(
        (task, family)
        for task in ("classification", "multi_label", "regression")
        for family in ("encoder", "decoder", "encoder_decoder")
    ),
    ("token_classification", "encoder"),
    ("token_classification", "decoder"),
    ("chat", "decoder"),
]


@pytest.mark.parametrize(("task", "family"), CASES)
def test_one_batch_is_learnt(tokenizer: Tokenizer, task: str, family: str) -> None:
    config = compose(["experiment=none", f"model={family}", f"task={task}", *SIZES])
    config["task"] |= {name: 0 for name in ("label_smoothing", "dropout") if name in config["task"]}
    if "sample_tokens" in config["task"]:
        config["task"]["sample_tokens"] = 5
    objective: Objective = build(config["task"])(
        family=family, tokenizer=tokenizer, labels=["a", "b", "c"], seq_len=48, seed=0
    )
    kind = objective.kinds[0]
    examples = EXAMPLES[kind](tokenizer)
    batch = objective.collate(examples, [(0, i) for i in range(len(examples))])
    n_tokens = tokenizer.vocab_size + objective.extra_tokens
    model = build(config["model"] | objective.model_arguments() | {"vocab_size": n_tokens})()
    model.initialise(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for _ in range(80):
        optimizer.zero_grad()
        loss = objective.loss(model, batch) / batch["n_targets"]
        loss.backward()
        optimizer.step()
    with torch.inference_mode():
        measures = objective.evaluate(model.eval(), batch)
        samples = objective.samples(model, examples)
    assert float(measures.loss) / measures.n_targets < 0.05
    assert set(measures.ratios) == set(objective.measures)
    for name, (total, count) in measures.ratios.items():
        if name in ("accuracy", "exact_match"):
            assert float(total) == float(count), name
    assert len(samples) == len(examples)


WRITERS = [case for case in CASES if case[0] in ("causal_lm", "prefix_lm", "denoising", "seq2seq", "span_corruption")]


@pytest.mark.parametrize(("task", "family"), WRITERS)
def test_nothing_is_written_that_no_token_stands_for(
    tokenizer: Tokenizer, task: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table with more rows than there are tokens, as published ones are padded: here those are the likeliest."""
    config = compose(["experiment=none", f"model={family}", f"task={task}", "model/head=language_model_bias", *SIZES])
    if "sample_tokens" in config["task"]:
        config["task"]["sample_tokens"] = 3
    objective: Objective = build(config["task"])(family=family, tokenizer=tokenizer, labels=None, seq_len=24, seed=0)
    n_tokens = tokenizer.vocab_size + objective.extra_tokens
    model = build(config["model"] | {"vocab_size": n_tokens + 5})()
    model.initialise(0)
    with torch.no_grad():
        model.head.bias[n_tokens:] = 99.0
    written: list[int] = []

    def kept(ids: Any) -> str:
        written.extend(int(i) for i in ids)
        return ""

    monkeypatch.setattr(tokenizer, "decode", kept)
    objective.samples(model, EXAMPLES[objective.kinds[0]](tokenizer))
    assert written
    assert max(written) < tokenizer.vocab_size


def test_every_task_in_every_family_is_here() -> None:
    """Of text: classes of images are learned in `test_images`."""
    tasks = {path.stem: locate(read_mapping(path)["_target_"]) for path in (conf_dir() / "task").glob("*.yaml")}
    of_text = {name: task for name, task in tasks.items() if task.kinds != ("images",)}
    assert set(CASES) == {(name, family) for name, task in of_text.items() for family in task.families}


def test_the_page_of_tasks_says_who_learns_what() -> None:
    page = (conf_dir().parent / "docs" / "tasks.md").read_text(encoding="utf-8")
    rows = {row[0].strip("`"): row for row in ([cell.strip() for cell in line.strip("|\n").split("|")]
            for line in page.splitlines() if line.startswith("| `"))}  # fmt: skip
    for path in (conf_dir() / "task").glob("*.yaml"):
        task, row = locate(read_mapping(path)["_target_"]), rows[path.stem]
        families = [name for name, cell in zip(("encoder", "decoder", "encoder_decoder"), row[2:], strict=False)
                    if cell != "-"]  # fmt: skip
        assert (row[1], families) == (task.kinds[0], list(task.families)), path.stem
