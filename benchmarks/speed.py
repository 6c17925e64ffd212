"""Training throughput of triform and of what one would use instead, at equal shapes, side by side.

    python benchmarks/speed.py [--family decoder|encoder|encoder_decoder ...] [--shape baby|small ...]
        [--rounds N] [--seconds S] [--dropout SHARE] [--only NAME ...]

Each contestant trains in a process of its own, with its own allocator and caches, and all take turns: a busy machine
slows all of them. A round begins with the largest matrix product of the shape, whose rate is the ceiling. Printed are
tokens per second, the median over rounds; the ratio to the first contestant, the median of each round's; and the share
of the ceiling. Data are random tokens, numbers are float32, the optimizer is AdamW (fused) with the gradient clipped.
Dropout is 0; with `--dropout` Hugging Face's models and triform's have it after embeddings and sublayers and on the
attention weights, T5 also inside its feed-forward layers. Contestants that are not installed are left out and named.
"""

import argparse
import logging
import multiprocessing as mp
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

WARM_UP = 3  # steps before the clock starts

Run = Callable[[int], float]
"""Seconds per step over so many steps."""
Contestant = Callable[["Shape"], Run]


@dataclass(frozen=True)
class Shape:
    """Sizes that all contestants have; of an encoder-decoder both stacks are so deep and both rows so long."""

    layers: int
    width: int
    heads: int
    length: int
    batch: int
    vocab: int
    dropout: float = 0.0

    @property
    def tokens(self) -> int:
        return self.batch * self.length


SHAPES = {
    "baby": Shape(layers=4, width=128, heads=4, length=64, batch=12, vocab=65),
    "small": Shape(layers=6, width=384, heads=6, length=256, batch=8, vocab=4096),
}


# One step by hand


def by_hand(model: Any, loss: Callable[[Any, Any], Any], shape: Shape, rows: int = 1) -> Run:
    """The loop that one would write: loss, backward, clip, AdamW. Each step reads `rows` new rows of tokens each."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(0)
    model.train()

    def run(steps: int) -> float:
        began = 0.0
        for step in range(WARM_UP + steps):
            if step == WARM_UP:
                began = time.perf_counter()
            batch = torch.randint(0, shape.vocab, (rows, shape.batch, shape.length + 1), generator=generator)
            loss(model, batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return (time.perf_counter() - began) / steps

    return run


def next_token(logits_of: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Cross-entropy of logits in full, as all the others compute it."""
    from torch.nn.functional import cross_entropy

    def loss(model: Any, batch: Any) -> Any:
        ids = batch[0]
        return cross_entropy(logits_of(model, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return loss


# Decoders


def hf_gpt2(shape: Shape) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.vocab,
            n_positions=shape.length,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            resid_pdrop=shape.dropout,
            embd_pdrop=shape.dropout,
            attn_pdrop=shape.dropout,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )


def gpt2_loop(shape: Shape) -> Run:
    return by_hand(hf_gpt2(shape), next_token(lambda model, ids: model(ids).logits), shape)


def gpt2_lightning(shape: Shape) -> Run:
    import lightning
    import torch

    loss_of = next_token(lambda model, ids: model(ids).logits)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.began = hf_gpt2(shape), 0.0

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == WARM_UP:
                self.began = time.perf_counter()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = loss_of(self.model, batch[None])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)

    def run(steps: int) -> float:
        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=WARM_UP + steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=1.0,
        )
        rows = list(torch.randint(0, shape.vocab, (WARM_UP + steps, shape.batch, shape.length + 1)))
        trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=None))
        return (time.perf_counter() - module.began) / steps

    return run


def gpt2_hf_trainer(shape: Shape) -> Run:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == WARM_UP:
                self.began = time.perf_counter()

    def run(steps: int) -> float:
        rows = torch.randint(0, shape.vocab, ((WARM_UP + steps) * shape.batch, shape.length))
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=shape.batch,
                max_steps=WARM_UP + steps,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                logging_steps=50,
                use_cpu=True,
                dataloader_pin_memory=False,
            )
            data: Any = [{"input_ids": row, "labels": row} for row in rows]
            Trainer(hf_gpt2(shape), arguments, train_dataset=data, callbacks=[clock]).train()
        return (time.perf_counter() - clock.began) / steps

    return run


def x_transformers(shape: Shape) -> Run:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=shape.width,
        depth=shape.layers,
        heads=shape.heads,
        attn_dim_head=shape.width // shape.heads,
        attn_flash=True,
    )
    model = TransformerWrapper(num_tokens=shape.vocab, max_seq_len=shape.length, attn_layers=layers)
    return by_hand(model, next_token(lambda model, ids: model(ids)), shape)


def torch_nn(shape: Shape) -> Run:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(shape.vocab, shape.width)
            self.places = nn.Embedding(shape.length, shape.width)
            layer = nn.TransformerEncoderLayer(
                shape.width, shape.heads, 4 * shape.width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, shape.layers, nn.LayerNorm(shape.width), False)
            self.mask = nn.Transformer.generate_square_subsequent_mask(shape.length)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
            return self.layers(x, mask=self.mask, is_causal=True) @ self.tokens.weight.T

    return by_hand(Model(), next_token(lambda model, ids: model(ids)), shape)


def hand_written(shape: Shape) -> Run:
    """GPT-2 on one page: one projection for queries, keys and values, SDPA's causal path, a tied head."""
    import torch.nn.functional as F
    from torch import Tensor, nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            d = shape.width
            self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x: Tensor) -> Tensor:
            batch, length, d = x.shape
            q, k, v = (
                part.view(batch, length, shape.heads, -1).transpose(1, 2)
                for part in self.qkv(self.norm_1(x)).split(d, 2)
            )
            read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(read.transpose(1, 2).reshape(batch, length, d))
            return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(shape.vocab, shape.width)
            self.places = nn.Embedding(shape.length, shape.width)
            self.layers = nn.ModuleList(Layer() for _ in range(shape.layers))
            self.norm = nn.LayerNorm(shape.width)
            nn.init.normal_(self.tokens.weight, std=0.02)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
            for layer in self.layers:
                x = layer(x)
            return self.norm(x) @ self.tokens.weight.T

    return by_hand(Model(), next_token(lambda model, ids: model(ids)), shape)


# triform


def sizes(shape: Shape, model: str) -> list[str]:
    """What is typed to have a preset at a shape."""
    gated = model == "decoder"
    return [
        f"model={model}",
        f"model.d_model={shape.width}",
        f"model.n_layers={shape.layers}",
        f"model.n_heads={shape.heads}",
        # a gated layer has three projections: 8/3 of the width is as much as 4 times with two
        f"model.d_ff={round(8 / 3 * shape.width / 8) * 8 if gated else 4 * shape.width}",
        f"model.max_seq_len={shape.length}",
        "model.vocab_size=null",
        f"model.dropout={shape.dropout}",
        f"model.attention.weights_dropout={shape.dropout}",
        *(["model/head=masked_lm"] if model.startswith("bert") else []),
        *([f"model.head_dim={shape.width // shape.heads}"] if model.startswith("t5") else []),
        *([f"model.feed_forward.dropout={shape.dropout}"] if model.startswith("t5") else []),
    ]


def composed(*overrides: str) -> dict[str, Any]:
    """The config of a run on random text."""
    from triform.run.compose import compose

    return compose(["data=text", "data.train_files=benchmarks", "logger=csv", "trainer.accelerator=cpu", *overrides])


def built(shape: Shape, model: str) -> Any:
    """A model of triform, trained by the same loop as the others and with the memory that a run has."""
    import torch

    from triform.run.parts import model_factory

    task = {"encoder": "masked_lm", "encoder_decoder": "seq2seq", "decoder": "causal_lm"}[family_of(model)]
    config = composed(f"task={task}", *sizes(shape, model))
    with torch.device("meta"):
        made: Any = model_factory(config, shape.vocab)()
    made.to_empty(device="cpu").initialise(0)
    return made


def family_of(model: str) -> str:
    if model.startswith("bert"):
        return "encoder"
    return "encoder_decoder" if model.startswith(("t5", "bart")) else "decoder"


def by_head(model: Any, hidden: Any, labels: Any, n: Any) -> Any:
    """Mean cross-entropy of `n` labels by the head, as a task computes it."""
    from triform.layers.losses import CrossEntropy

    return model.head(hidden, labels, CrossEntropy(0.0)) / n


def own_loss(model: Any, batch: Any) -> Any:
    ids = batch[0]
    return by_head(model, model(ids[:, :-1]).hidden, ids[:, 1:], ids[:, 1:].numel())


def own_masked_loss(model: Any, batch: Any) -> Any:
    ids, labels = masked(batch)
    return by_head(model, model(ids).hidden, labels, (labels != -100).sum())


def own_loss_of_pairs(model: Any, batch: Any) -> Any:
    source, target = batch[0, :, :-1], batch[1]
    return by_head(model, model(source, target[:, :-1]).hidden, target[:, 1:], target[:, 1:].numel())


def triform_loop(shape: Shape, model: str = "gpt2", compiled: bool = False) -> Run:
    made = built(shape, model)
    if compiled:
        made.compile(dynamic=False)
    losses = {"decoder": own_loss, "encoder": own_masked_loss, "encoder_decoder": own_loss_of_pairs}
    family = family_of(model)
    return by_hand(made, losses[family], shape, rows=2 if family == "encoder_decoder" else 1)


def triform_fit(shape: Shape, model: str = "gpt2") -> Run:
    """All of a run but its start: Lightning, record, progress, guards, the data loader; validation left out."""
    from lightning import Callback

    from triform.data.tokenizers.tokenizer import SPECIAL_TOKENS
    from triform.run.parts import data, parts
    from triform.training.fit import fit

    folder = Path(tempfile.mkdtemp())
    letters = [chr(0x4E00 + i) for i in range(shape.vocab - len(SPECIAL_TOKENS) - 1)]
    text = "".join(random.Random(0).choices(letters, k=200 * shape.tokens))
    for split, share in (("train", text + "".join(letters)), ("validation", text[: 2 * shape.length])):
        (folder / f"{split}.txt").write_text(share, encoding="utf-8")
    config = composed(
        f"data.train_files={folder}/train.txt",
        f"data.validation_files={folder}/validation.txt",
        f"data.seq_len={shape.length}",
        f"data.batch_size={shape.batch}",
        f"paths.outputs={folder}",
        "trainer.max_epochs=null",
        "trainer.max_steps=1",
        "trainer.val_interval=null",
        "trainer.save_interval=null",
        "scheduler=constant",
        "tokenizer=char",
        *sizes(shape, model),
        f"model.vocab_size={shape.vocab}",
    )
    prepared = data(config)

    class Clock(Callback):
        began = 0.0

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == WARM_UP:
                self.began = time.perf_counter()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.seconds = time.perf_counter() - self.began

    def run(steps: int) -> float:
        config["trainer"]["max_steps"] = WARM_UP + steps
        made, clock = parts(config, prepared), Clock()
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "config.yaml").write_text("", encoding="utf-8")  # of which ranks compare a hash
            fit(
                settings=made.settings,
                folder=Path(place),
                data=made.data,
                prepared=prepared,
                model_factory=made.model_factory,
                objective=made.objective,
                optimizer=made.optimizer,
                schedule=made.schedule,
                seed=0,
                loggers=[],
                callbacks=[*made.callbacks, clock],
                fill=None,
                resume=False,
            )
        return clock.seconds / steps

    return run


# Encoders, with a label for every seventh token


def masked(batch: Any) -> tuple[Any, Any]:
    import torch

    ids = batch[0, :, :-1].contiguous()
    return ids, torch.where(torch.arange(ids.shape[1]) % 7 == 3, ids, -100)


def hf_bert(shape: Shape) -> Run:
    import torch.nn.functional as F
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        max_position_embeddings=shape.length,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
        attn_implementation="sdpa",
    )

    def loss(model: Any, batch: Any) -> Any:
        ids, labels = masked(batch)
        return F.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten())

    return by_hand(BertForMaskedLM(config), loss, shape)


# Encoder-decoders, which read one row and write another


def pairs_loop(model: Any, shape: Shape) -> Run:
    from torch.nn.functional import cross_entropy

    def loss(model: Any, batch: Any) -> Any:
        source, target = batch[0, :, :-1], batch[1]
        logits = model(input_ids=source, decoder_input_ids=target[:, :-1]).logits
        return cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())

    return by_hand(model, loss, shape, rows=2)


def hf_t5(shape: Shape) -> Run:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=shape.vocab,
        d_model=shape.width,
        d_kv=shape.width // shape.heads,
        d_ff=4 * shape.width,
        num_layers=shape.layers,
        num_heads=shape.heads,
        dropout_rate=shape.dropout,
        use_cache=False,
    )
    return pairs_loop(T5ForConditionalGeneration(config), shape)


def hf_bart(shape: Shape) -> Run:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=shape.vocab,
        d_model=shape.width,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=4 * shape.width,
        decoder_ffn_dim=4 * shape.width,
        max_position_embeddings=shape.length,
        dropout=shape.dropout,
        attention_dropout=shape.dropout,
        activation_dropout=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return pairs_loop(BartForConditionalGeneration(config), shape)


def named(*contestants: Contestant) -> dict[str, Contestant]:
    return {contestant.__name__: contestant for contestant in contestants}


def compiled_or_not(name: str, model: str) -> dict[str, Contestant]:
    return {
        name: partial(triform_loop, model=model),
        f"{name}_compiled": partial(triform_loop, model=model, compiled=True),
    }


CONTESTS: dict[str, list[dict[str, Contestant]]] = {
    "decoder": [
        {
            **named(gpt2_loop, gpt2_lightning, gpt2_hf_trainer, x_transformers, torch_nn, hand_written),
            **compiled_or_not("triform_loop", "gpt2"),
            **compiled_or_not("triform_loop_default", "decoder"),
            "triform_fit": triform_fit,
            "triform_fit_default": partial(triform_fit, model="decoder"),
        }
    ],
    "encoder": [{**named(hf_bert), **compiled_or_not("triform_bert", "bert_base")}],
    "encoder_decoder": [
        {**named(hf_t5), **compiled_or_not("triform_t5", "t5_small")},
        {**named(hf_bart), **compiled_or_not("triform_bart", "bart_base")},
    ],
}
"""Of each family, who trains beside whom, by name; the first is what others are compared with."""


# Processes that take turns


def contest(line: Any, contestant: Contestant, shape: Shape, ours: bool) -> None:
    """Of a process: makes one contestant, then trains as many steps as it is told and answers how long one took."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    import torch

    torch.manual_seed(0)
    if ours:
        from triform.training.memory import keep_memory

        keep_memory()  # as every rank of a run does
    try:
        run = contestant(shape)
        run(1)
    except Exception as error:
        line.send(f"{type(error).__name__}: {error}".splitlines()[0])
        return
    line.send(None)
    while steps := line.recv():
        line.send(run(steps))


@contextmanager
def turns(contestants: dict[str, Contestant], shape: Shape) -> Iterator[dict[str, Run]]:
    """Each contestant in its process, made and warm; those that cannot be made are named."""
    processes = mp.get_context("forkserver")
    processes.set_forkserver_preload(["torch", "lightning", "transformers", "triform.training.fit"])
    lines, started = {}, []
    for name, contestant in contestants.items():
        line, other = processes.Pipe()
        ours = name.startswith("triform")
        process = processes.Process(target=contest, args=(other, contestant, shape, ours), daemon=True)
        process.start()
        started.append(process)
        trouble = line.recv()
        if trouble is None:
            lines[name] = line
        else:
            print(f"{name} is left out: {trouble}")

    def asked(line: Any) -> Run:
        def run(steps: int) -> float:
            line.send(steps)
            return float(line.recv())

        return run

    try:
        yield {name: asked(line) for name, line in lines.items()}
    finally:
        for line in lines.values():
            line.send(0)
        for process in started:
            process.join()


def ceiling(line: Any, shape: Shape) -> None:
    """Of a process: the rate of the first projection of a feed-forward layer, in floating-point operations a second."""
    import torch

    a, b = torch.randn(shape.tokens, shape.width), torch.randn(shape.width, 4 * shape.width)
    out = a @ b
    while line.recv():
        began, n = time.perf_counter(), 0
        while time.perf_counter() - began < 0.5:
            torch.mm(a, b, out=out)
            n += 1
        line.send(2 * a.numel() * b.shape[1] * n / (time.perf_counter() - began))


def flops_per_token(family: str, shape: Shape) -> float:
    """Of a training step: 6 for each weight of a matrix that a token passes, and of attention what can be seen."""
    block = 12 * shape.width**2
    seen = {"decoder": 0.5, "encoder": 1.0}.get(family, 0.0)
    if family == "encoder_decoder":  # for a token of the target: one of the source beside it, and attention to that
        weights = shape.layers * (2 * block + 4 * shape.width**2) + shape.vocab * shape.width
        pairs = shape.layers * (1.0 + 0.5 + 1.0)
    else:
        labelled = 1 / 7 if family == "encoder" else 1.0
        weights = shape.layers * block + labelled * shape.vocab * shape.width
        weights += labelled * shape.width**2 if family == "encoder" else 0
        pairs = shape.layers * seen
    return 6 * weights + 12 * pairs * shape.width * shape.length


def measure(
    family: str, name: str, shape: Shape, contestants: dict[str, Contestant], rounds: int, seconds: float
) -> None:
    processes = mp.get_context("forkserver")
    line, other = processes.Pipe()
    ceilings: list[float] = []
    with turns(contestants, shape) as runs:
        measuring = processes.Process(target=ceiling, args=(other, shape), daemon=True)
        measuring.start()
        steps = max(3, round(seconds / runs[next(iter(runs))](3)))
        taken: dict[str, list[float]] = {contestant: [] for contestant in runs}
        for _ in range(rounds):
            line.send(True)
            ceilings.append(line.recv())
            for contestant, run in runs.items():
                taken[contestant].append(run(steps))
        line.send(False)
    rate, flops = statistics.median(ceilings), flops_per_token(family, shape)
    print(
        f"\n{family}, {name}: {shape.layers} layers, width {shape.width}, {shape.heads} heads, {shape.batch} rows of "
        f"{shape.length}, vocabulary {shape.vocab}, dropout {shape.dropout}; {steps} steps in each of "
        f"{rounds} rounds; matrix products {rate / 1e9:.0f} GFLOP/s, {flops / 1e6:.2f} MFLOP per token\n"
    )
    print(f"| | tokens/s | against {next(iter(taken))} | of the ceiling |\n| --- | --- | --- | --- |")
    for contestant, times in taken.items():
        ratio = statistics.median(a / b for a, b in zip(taken[next(iter(taken))], times, strict=True))
        speed = shape.tokens / statistics.median(times)
        share = statistics.median(shape.tokens / t * flops / c for t, c in zip(times, ceilings, strict=True))
        print(f"| {contestant} | {speed:,.0f} | {ratio:.2f} | {100 * share:.0f} % |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", nargs="*", choices=CONTESTS, default=["decoder"])
    parser.add_argument("--shape", nargs="*", choices=SHAPES, default=["baby"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="that the first contestant trains in a round")
    parser.add_argument("--dropout", type=float, default=0.0, help="share set to zero")
    parser.add_argument("--only", nargs="*", help="these contestants")
    given = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    for family in given.family:
        for contestants in CONTESTS[family]:
            chosen = {name: one for name, one in contestants.items() if given.only is None or name in given.only}
            for name in given.shape if chosen else []:
                shape = replace(SHAPES[name], dropout=given.dropout)
                measure(family, name, shape, chosen, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
