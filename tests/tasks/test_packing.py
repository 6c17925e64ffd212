"""Several examples in a row are learnt as each in a row of its own."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.test_learning import EXAMPLES, SIZES

from triform.data.order import Order
from triform.data.tokenizers import Tokenizer
from triform.run.build import build
from triform.run.check import check
from triform.run.compose import compose
from triform.run.errors import BadInput
from triform.run.folder import read_mapping
from triform.run.help import conf_dir
from triform.tasks.objective import Objective
from triform.tasks.packing import packing

CASES = [
    *((task, "decoder") for task in ("causal_lm", "prefix_lm", "span_corruption", "denoising", "seq2seq", "chat")),
    ("masked_lm", "encoder"),
    ("token_classification", "decoder"),
    ("token_classification", "encoder"),
]


def task_of(name: str, family: str, tokenizer: Tokenizer, seq_len: int) -> Objective:
    return build(read_mapping(conf_dir() / "task" / f"{name}.yaml"), [], "task")(
        family=family, tokenizer=tokenizer, labels=["some", "none", "all"], seq_len=seq_len, seed=3
    )


def examples_of(objective: Objective, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Seven of different lengths; documents of running text come with the token before them and their end."""
    kind = objective.kinds[0]
    if kind != "text":
        return (EXAMPLES[kind](tokenizer) * 4)[:7]
    ids = np.array(tokenizer.encode("the cat sat. a dog ran away! who, me? yes you"))
    documents = [ids[:n] for n in (19, 3, 11, 1, 5, 14, 8)]
    return [{"ids": np.append(text, tokenizer.eos_id), "opening": tokenizer.eos_id} for text in documents]


def model_of(objective: Objective, family: str, position: str) -> torch.nn.Module:
    config = compose([f"model={family}", *SIZES, f"model/position={position}", "model.max_seq_len=48"])["model"]
    rows = config.pop("vocab_size", None) or 60 + objective.extra_tokens
    config.pop("path", None)
    for name in objective.model_arguments():
        config.pop(name, None)
    model = build(config, [], "model")(vocab_size=rows, **objective.model_arguments()).eval()
    model.initialise(5)
    return model


@pytest.mark.parametrize("position", ["rotary", "learned", "alibi"])
@pytest.mark.parametrize(("name", "family"), CASES)
def test_loss_and_gradient_are_those_of_rows_of_their_own(
    tokenizer: Tokenizer, name: str, family: str, position: str
) -> None:
    objective = task_of(name, family, tokenizer, seq_len=48)
    examples = examples_of(objective, tokenizer)
    keys = [(2, i) for i in range(len(examples))]
    pack = packing(objective, 48)
    lengths = [[len(value) for key, value in example.items() if key.endswith("ids")] for example in examples]
    order = Order(np.array(lengths), 4, None, 0, pack.row_lengths(np.array(lengths)), 48)
    rows = order.rows(0)[1]
    assert len(rows) == order.n_rows < len(examples)
    packed = pack.join([objective.collate([examples[i] for i in row], [keys[i] for i in row]) for row in rows])
    apart = objective.collate(examples, keys)
    assert packed["input_ids"].shape[1] <= 48
    assert packed["input_ids"].shape[0] == len(rows)
    assert (packed["n_tokens"], packed["n_targets"]) == (apart["n_tokens"], apart["n_targets"])
    found = []
    for batch in (apart, packed):
        model = model_of(objective, family, position)
        loss = objective.loss(model, batch)
        loss.backward()
        found.append((loss.detach(), {key: p.grad for key, p in model.named_parameters() if p.grad is not None}))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=0)  # the loss is summed in float32
    largest = max(float(gradient.abs().max()) for gradient in found[0][1].values())
    for key, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][key], rtol=0, atol=1e-6 * largest, msg=key)


def test_rows_written_out(tokenizer: Tokenizer) -> None:
    objective = task_of("prefix_lm", "decoder", tokenizer, seq_len=9)
    texts = [np.array(row) for row in ([11, 12, 13, 14], [21, 22], [31], [41, 42, 43])]
    apart = [objective.collate([{"ids": text}], [(0, i)]) for i, text in enumerate(texts)]
    prefixes = [int(batch["prefix_length"]) for batch in apart]
    rows = [objective.collate([{"ids": texts[i]} for i in row], [(0, i) for i in row]) for row in ([0, 1, 2], [3])]
    batch = packing(objective, 9).join(rows)
    assert batch["input_ids"].tolist() == [[11, 12, 13, 21], [41, 42, tokenizer.pad_id, tokenizer.pad_id]]
    assert batch["padding_mask"].tolist() == [[True] * 4, [True, True, False, False]]
    assert batch["document_ids"].tolist() == [[1, 1, 1, 2], [1, 1, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    assert batch["prefix_length"].tolist() == [[prefixes[0]] * 3 + [4], [prefixes[3]] * 2 + [0, 0]]
    assert batch["labels"].tolist()[0][3] == 22
    assert batch["labels"].tolist()[1][2:] == [-100, -100]


@pytest.mark.parametrize(("name", "family"), CASES)
def test_no_example_takes_more_of_a_row_than_is_planned(tokenizer: Tokenizer, name: str, family: str) -> None:
    objective = task_of(name, family, tokenizer, seq_len=31)
    columns = 2 if objective.kinds == ("pairs",) else 1
    text_length = objective.text_length() or 31
    for length in range(1, 80):
        n = min(length, text_length) if objective.kinds == ("text",) else length
        ids, draw = np.full(n, 9), np.random.default_rng(length)
        ids[-1] = tokenizer.eos_id if length % 2 else 9
        example: dict[str, Any] = {"ids": ids, "opening": 1, "learned": ids > 0, "tags": ids * 0}
        example |= {"source_ids": ids, "target_ids": np.full(draw.integers(1, 80), 8)}
        sizes = np.array([[n, len(example["target_ids"])][:columns]])
        batch = objective.collate([example], [(0, length)])
        assert batch["n_tokens"] <= objective.row_lengths(sizes)[0] <= 31, length


def test_it_travels_to_loader_workers(tokenizer: Tokenizer) -> None:
    join = pickle.loads(pickle.dumps(packing(task_of("chat", "decoder", tokenizer, 9), 9).join))
    assert join.keywords == {"pad_id": tokenizer.pad_id}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=labelled", "model=decoder"], "Classification predicts one thing of a row; set data.packing=false"),
        (["data=pairs", "model=encoder_decoder"], "Seq2Seq reads one example a row in model=encoder_decoder"),
    ],
)
def test_refuses_what_has_a_row_of_its_own(tmp_path: Path, overrides: list[str], message: str) -> None:
    file = tmp_path / "x.tsv"
    file.write_text("a\tb\n")
    config = compose([*overrides, f"data.train_files={file}", f"paths.outputs={tmp_path / 'out'}"])
    config["data"]["packing"] = True
    with pytest.raises(BadInput, match=message):
        check(config)
