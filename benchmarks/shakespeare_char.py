"""Tinyshakespeare, character by character: `experiment=shakespeare_char` beside nanoGPT's recipe for CPUs, in one run.

    python benchmarks/shakespeare_char.py input.txt [--seed 0] [--steps 2000]

nanoGPT (https://github.com/karpathy/nanoGPT) is not in the package index. What stands for it here is a plain PyTorch
loop over a decoder of its shape and with its recipe: `train.py config/train_shakespeare_char.py --device=cpu
--compile=False --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000
--lr_decay_iters=2000 --dropout=0.0`. Both learn from the first nine tenths of the text and are judged on all of the
rest, each character once (but the first of a row, which has no context), in rows as long as those they learnt from.
Seconds are those of training steps, without start and validation; both use as many threads as OMP_NUM_THREADS says.
"""

import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.analysis.runs import read_run
from triform.training.environment import environment

CONTEXT, BATCH, LAYERS, HEADS, WIDTH = 64, 12, 4, 4, 128
LR, MIN_LR, WARMUP, BETAS, DECAY, CLIP = 1e-3, 1e-4, 100, (0.9, 0.99), 0.1, 1.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH, bias=False)
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.ln_2 = nn.LayerNorm(WIDTH, bias=False)
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.mlp_proj = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class Plain(nn.Module):
    """GPT-2's decoder as nanoGPT builds it, without biases, embeddings and head sharing one table."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS) if "proj" in name else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def rate(step: int, steps: int) -> float:
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    return MIN_LR + 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))) * (LR - MIN_LR)


@torch.no_grad()
def validation(model: nn.Module, ids: Tensor) -> float:
    """Mean loss of every character that has one before it in its row, in nats."""
    whole = (len(ids) - 1) // CONTEXT * CONTEXT
    pieces = [(ids[:whole].view(-1, CONTEXT), ids[1 : whole + 1].view(-1, CONTEXT))]
    if rest := ids[whole:-1].numel():
        pieces.append((ids[whole:-1][None], ids[-rest:][None]))
    total = sum(
        F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item()
        for xs, ys in pieces
        for x, y in zip(xs.split(128), ys.split(128), strict=True)
    )
    return total / (len(ids) - 1)


def plain(text: str, seed: int, steps: int) -> tuple[int, float, float]:
    """Parameters, seconds of training, and validation loss."""
    torch.manual_seed(seed)
    letters = {letter: i for i, letter in enumerate(sorted(set(text)))}
    ids = torch.tensor([letters[letter] for letter in text])
    cut = int(0.9 * len(ids))
    train, held_out = ids[:cut], ids[cut:]
    model = Plain(len(letters))
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    gains = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS)
    began = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        starts = torch.randint(len(train) - CONTEXT, (BATCH,)).tolist()
        x = torch.stack([train[i : i + CONTEXT] for i in starts])
        y = torch.stack([train[i + 1 : i + 1 + CONTEXT] for i in starts])
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seconds = time.perf_counter() - began
    return sum(p.numel() for p in model.parameters()), seconds, validation(model, held_out)


def recipe(text: Path, seed: int) -> tuple[int, int, float, float]:
    """Parameters, tokens read, seconds of training, and validation loss."""
    with tempfile.TemporaryDirectory() as outputs:
        command = [sys.executable, "train.py", "experiment=shakespeare_char", f"data.train_files={text.resolve()}"]
        command += ["logger=csv", f"seed={seed}", f"paths.outputs={outputs}"]
        root = Path(__file__).parent.parent
        out = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
        s = read_run(Path(out.splitlines()[-1].removeprefix("run: "))).summary
        return s["parameters"], s["tokens"], s["seconds"], s["final"]["validation/loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="tinyshakespeare's input.txt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2000, help="of the plain loop; nanoGPT's own are 2,000")
    options = parser.parse_args()
    hardware = environment(0)["hardware"]
    print(f"{hardware['cpu']}, {os.environ.get('OMP_NUM_THREADS', hardware['cores'])} threads, {platform.system()}\n")
    print("| | parameters | characters read | seconds | validation loss, nats |\n| --- | --- | --- | --- | --- |")
    ours = recipe(options.text, options.seed)
    print(f"| `experiment=shakespeare_char` | {ours[0]:,} | {ours[1]:,} | {ours[2]:.1f} | {ours[3]:.3f} |", flush=True)
    size, seconds, loss = plain(options.text.read_text(encoding="utf-8"), options.seed, options.steps)
    read = options.steps * BATCH * CONTEXT
    print(f"| nanoGPT's recipe, plain loop | {size:,} | {read:,} | {seconds:.1f} | {loss:.3f} |")
    print(f"\ncharacters {ours[1] / read:.2f}, seconds {ours[2] / seconds:.2f} of the plain loop's")


if __name__ == "__main__":
    main()
