"""How fast text is written: triform against `transformers`, a tiny LLaMA with the same weights and prompts.

    python benchmarks/generation.py [NEW_TOKENS] [ROUNDS]

All write greedily, with their caches, on one thread, and must write the same tokens: `transformers`, triform as it is,
and triform after `model.compile()`, which takes a minute or two at first (not counted). They take turns, and the clock
is that of the processor, so that a busy machine slows none. Printed are new tokens per second, the median over rounds,
and the ratio to `transformers`, the median over rounds. The target is 1.5.
"""

import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor, nn

from triform.generation import generate

BATCHES = (1, 32)
PROMPT = 16  # tokens
VOCAB_SIZE = 512
SIZES = {"d_model": 64, "n_layers": 5, "n_heads": 8, "n_kv_heads": 4, "d_ff": 172, "max_seq_len": 512}
NAMES = {
    "lm_head": "head.projection",
    "model.embed_tokens": "embedding.table",
    "model.layers": "stack.layers",
    "model.norm": "stack.final_norm",
    "self_attn.o_proj": "attention.out_proj",
    "self_attn": "attention",
    "mlp": "feed_forward",
    "input_layernorm": "attn_residual.norm",
    "post_attention_layernorm": "ff_residual.norm",
}

Write = Callable[[Tensor, int], Tensor]


def writers() -> dict[str, Write]:
    """What continues prompts by a number of tokens, of each library."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=SIZES["d_model"],
        num_hidden_layers=SIZES["n_layers"],
        num_attention_heads=SIZES["n_heads"],
        num_key_value_heads=SIZES["n_kv_heads"],
        intermediate_size=SIZES["d_ff"],
        max_position_embeddings=SIZES["max_seq_len"],
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = LlamaForCausalLM(config).eval()
    for parameter in theirs.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    sizes = [f"model.{name}={value}" for name, value in SIZES.items()]
    with initialize_config_dir(str(Path(__file__).parent.parent / "conf"), version_base=None):
        node = compose(overrides=["+model=decoder", "model.head.tied=false", *sizes]).model
    ours = instantiate(node, _convert_="all")(vocab_size=VOCAB_SIZE).eval()
    weights = {}
    for key, value in theirs.state_dict().items():
        for old, new in NAMES.items():
            key = key.replace(old, new)
        weights[key] = value
    ours.load_state_dict(weights)
    compiled = copy.deepcopy(ours)
    compiled.compile()
    return {
        "transformers": lambda prompts, n: theirs.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=n, do_sample=False
        ),
        "triform": lambda prompts, n: generate(ours, prompts, max_new_tokens=n),
        "triform, compiled": lambda prompts, n: generate(compiled, prompts, max_new_tokens=n),
    }


def main(new_tokens: int, rounds: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    of = writers()
    for batch in BATCHES:
        torch.compiler.reset()  # a batch of its own size
        prompts = torch.randint(1, VOCAB_SIZE, (batch, PROMPT))
        written = [write(prompts, new_tokens) for write in of.values()]
        assert all(torch.equal(written[0], other) for other in written[1:]), "they do not write the same"
        speeds: dict[str, list[float]] = {name: [] for name in of}
        for _ in range(rounds):
            for name, write in of.items():
                began = time.process_time()
                write(prompts, new_tokens)
                speeds[name].append(batch * new_tokens / (time.process_time() - began))
        print(f"batch {batch}")
        for name, values in speeds.items():
            ratios = [ours / theirs for ours, theirs in zip(values, speeds["transformers"], strict=True)]
            print(f"  {name:18} {statistics.median(values):8.0f} tokens/s {statistics.median(ratios):6.2f} times")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*given, *(128, 7)[len(given) :])
