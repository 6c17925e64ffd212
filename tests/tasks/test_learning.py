"""Each task, in each family that it trains, learns one batch by heart."""

from typing import Any

import numpy as np
import pytest
import torch

from triform.data.tokenizers import Tokenizer
from triform.run.build import build
from triform.run.compose import compose
from triform.tasks.objective import Objective

TEXT = "the cat sat. a dog ran away! who, me? yes you"
SIZES = ("model.d_model=32", "model.n_heads=2", "model.n_layers=2", "model.d_ff=48", "model.dropout=0")


def texts(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    ids = np.array(tokenizer.encode(TEXT))
    return [{"ids": ids[:20]}, {"ids": ids[13:27], "documents": np.array([0] * 6 + [1] * 8)}]


EXAMPLES = {"text": texts}
CASES = [
    ("causal_lm", "decoder"),
    ("masked_lm", "encoder"),
    ("prefix_lm", "decoder"),
    ("span_corruption", "decoder"),
    ("span_corruption", "encoder_decoder"),
    ("denoising", "decoder"),
    ("denoising", "encoder_decoder"),
]


@pytest.mark.parametrize(("task", "family"), CASES)
def test_one_batch_is_learnt(tokenizer: Tokenizer, task: str, family: str) -> None:
    config = compose(["experiment=none", f"model={family}", f"task={task}", *SIZES])
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
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
