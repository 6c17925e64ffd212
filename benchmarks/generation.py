"""How fast text is written: triform beside `transformers`, with the same weights and the same prompts.

    python benchmarks/generation.py [--rounds N] [--threads N] [--only WORDS] [--compiled] [--run RUN --sources FILE]

Small decoders of GPT-2's and LLaMA's shape continue prompts, alone and 32 at a time: greedily, drawing, and by a search
with 5 beams. A Transformer of the size that Multi30k is translated with searches with 5 beams for 96 sources as long as
Multi30k's, 32 at a time, sorted by length as `triform translate` does it; `transformers` besides in the order of the
file, as its pipelines do it. Its weights are random, but for the end of a target, which is the likelier the later. A
trained model's targets are of more different lengths, and then more of the work is left out that ended searches cost:
`--run` measures that with the weights of a run of `experiment=multi30k_en_de model/placement=post`.

`triform.save_pretrained` writes the models and `transformers` reads them. Where nothing is drawn both must write the
same tokens, but for a tenth of the rows: two beams of a random model may be equal to rounding. They take turns. With
one thread, which is the default, the clock is that of the processor, so that a busy machine slows none; with more it is
that on the wall. Printed are new tokens (of translation: sentences) per second, the median over rounds, and triform's
ratio to `transformers`, the median over rounds.
"""

import argparse
import copy
import gzip
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor, nn

import triform
from triform import generate, save_pretrained

PROMPT, NEW = 16, 64  # tokens
BATCHES = (1, 32)
SIZES = {"n_layers": 4, "n_heads": 4, "d_model": 128, "max_seq_len": 128}
DECODERS = {
    "GPT-2": ("gpt2", 512, {**SIZES, "d_ff": 512}),
    "LLaMA": ("decoder", 512, {**SIZES, "d_ff": 344, "head.tied": "false"}),
}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # what triform is told, and what transformers
    "greedy": ({}, {"do_sample": False}),
    "drawing": ({"do_sample": True, "top_k": 50}, {"do_sample": True, "top_k": 50}),
    "5 beams": ({"num_beams": 5}, {"do_sample": False, "num_beams": 5}),
}

TRANSLATOR = ("marian_base", 10000, {**SIZES, "n_heads": 4, "d_ff": 256, "head.bias": "true"})
SOURCES, BATCH, LONGEST = 96, 32, 50
START, END, PAD = 1, 2, 0
END_WEIGHT, END_BIAS = 3.0, 2.0  # targets end after 13 to 21 tokens

Write = Callable[[], tuple[int, Any]]
"""Says how many it wrote, and what."""
Writers = dict[str, Write]


def composed(preset: str, overrides: list[str]) -> nn.Module:
    with initialize_config_dir(str(Path(__file__).parent.parent / "conf"), version_base=None):
        node = compose(overrides=[f"+model={preset}", *overrides]).model
    model: nn.Module = instantiate(node, _convert_="all")()
    return model.eval()


def both(preset: str, vocab_size: int, sizes: dict[str, Any], std: float = 0.15) -> tuple[nn.Module, Any]:
    """A model with random weights, and the same in `transformers`; one that translates ends what it writes."""
    import transformers

    ours = composed(preset, [f"model.vocab_size={vocab_size}", *(f"model.{name}={sizes[name]}" for name in sizes)])
    generator = torch.Generator().manual_seed(0)
    for parameter in ours.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std, generator=generator)
    if ours.head.bias is not None:
        positions = ours.decoder.position.table(torch.arange(30)[None])[0]
        later = positions[20:].mean(0) - positions[:6].mean(0)
        ours.embedding.table.weight.data[END] = END_WEIGHT * later / later.norm()
        ours.head.bias.data.zero_()[END] = END_BIAS
    with tempfile.TemporaryDirectory() as folder:
        kind = save_pretrained(ours, f"{folder}/model")
        theirs = getattr(transformers, kind).from_pretrained(f"{folder}/model").eval()
    return ours, theirs


def decoders(batch: int, name: str, way: str, compiled: bool) -> Writers:
    """What continues prompts."""
    ours, theirs = both(*DECODERS[name])
    prompts = torch.randint(3, 512, (batch, PROMPT), generator=torch.Generator().manual_seed(batch))
    theirs.generation_config.pad_token_id = PAD
    theirs.generation_config.eos_token_id = None
    told, told_theirs = WAYS[way]

    def write(model: nn.Module) -> Write:
        return lambda: (batch * NEW, generate(model, prompts, max_new_tokens=NEW, **told)[:, PROMPT:].tolist())

    def write_theirs() -> tuple[int, Any]:
        mask = torch.ones_like(prompts)
        written = theirs.generate(prompts, attention_mask=mask, max_new_tokens=NEW, **told_theirs)
        return batch * NEW, written[:, PROMPT:].tolist()

    writers = {"transformers": write_theirs, "triform": write(ours)}
    if compiled:
        in_place = copy.deepcopy(ours)
        in_place.compile()
        writers["triform, compiled"] = write(in_place)
    return writers


def translators() -> Writers:
    """What translates sources with 5 beams, with random weights."""
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.randn(SOURCES, generator=generator) * 4 + 13).round().clamp(5, 30).int().tolist()
    sources = [torch.randint(3, TRANSLATOR[1], (n,), generator=generator).tolist() for n in lengths]
    return translating(*both(*TRANSLATOR, std=0.1), sources, (START, END, PAD), LONGEST)


def trained_translators(run: Path, file: Path) -> Writers:
    """What translates the lines of a file with 5 beams, with the weights of a run.

    `transformers` reads them as Marian: norms after the sublayers, ReLU and sinusoidal positions are Marian's, too,
    except that all its sines come before all its cosines. So the numbers of the residual stream change places.
    """
    import transformers

    trained, tokenizer = triform.load(run)
    order = torch.cat((torch.arange(0, trained.d_model, 2), torch.arange(1, trained.d_model, 2)))
    config = yaml.safe_load((run / "config.yaml").read_text())
    sizes, longest = config["model"], config["data"]["seq_len"]
    overrides = [f"model.{name}={sizes[name]}" for name in ("d_model", "n_layers", "n_heads", "d_ff", "max_seq_len")]
    parts = ("model/feed_forward=relu", "model.dropout=0.0")
    ours = composed("marian_base", [f"model.vocab_size={trained.vocab_size}", *overrides, *parts])
    weights = {name: torch.zeros_like(value) for name, value in ours.state_dict().items()}  # biases that we have not
    for name, value in trained.state_dict().items():
        *_, layer, kind = name.split(".")
        if kind == "weight" and layer in ("table", "q_proj", "k_proj", "v_proj", "up_proj"):
            value = value[:, order]
        elif layer in ("out_proj", "down_proj") or "norm" in layer:
            value = value[order]
        weights[name] = value
    ours.load_state_dict(weights)
    with tempfile.TemporaryDirectory() as folder:
        kind = save_pretrained(ours, f"{folder}/model")
        theirs = getattr(transformers, kind).from_pretrained(f"{folder}/model").eval()
    sources = [[*row, tokenizer.source.eos_id] for row in tokenizer.source.encode_batch(lines(file))]
    return translating(ours, theirs, sources, (tokenizer.start_id, tokenizer.eos_id, tokenizer.pad_id), longest)


def lines(file: Path) -> list[str]:
    """Of a text, gzipped or not."""
    data = file.read_bytes()
    return (gzip.decompress(data) if file.suffix == ".gz" else data).decode().splitlines()


def translating(
    ours: nn.Module, theirs: Any, sources: list[list[int]], marks: tuple[int, int, int], longest_target: int
) -> Writers:
    """What translates sources, `BATCH` at a time.

    Args:
        marks: the tokens that begin and end a target, and that fill a row.
        longest_target: tokens after which a target ends in any case.
    """
    start, end, pad = marks
    lengths = [len(source) for source in sources]
    by_length = sorted(range(len(sources)), key=lengths.__getitem__, reverse=True)
    theirs.generation_config.update(
        decoder_start_token_id=start, eos_token_id=end, pad_token_id=pad, bos_token_id=None, forced_eos_token_id=None
    )

    def run(order: list[int], translate: Callable[[Tensor, Tensor], Tensor]) -> Write:
        def write() -> tuple[int, Any]:
            written: dict[int, list[int]] = {}
            for begin in range(0, len(sources), BATCH):
                chosen = order[begin : begin + BATCH]
                longest = max(lengths[i] for i in chosen)
                ids = torch.tensor([sources[i] + [pad] * (longest - lengths[i]) for i in chosen])
                mask = torch.arange(longest) < torch.tensor([[lengths[i]] for i in chosen])
                for i, row in zip(chosen, translate(ids, mask).tolist(), strict=True):
                    written[i] = row[1 : row.index(end, 1)] if end in row[1:] else row[1:]
            return len(sources), [written[i] for i in range(len(sources))]

        return write

    told = {"max_new_tokens": longest_target, "num_beams": 5}

    def with_ours(ids: Tensor, mask: Tensor) -> Tensor:
        return generate(ours, ids, mask, **told, start_id=start, eos_id=end, pad_id=pad)

    def with_theirs(ids: Tensor, mask: Tensor) -> Any:
        return theirs.generate(ids, attention_mask=mask.long(), **told, do_sample=False)

    return {
        "transformers": run(by_length, with_theirs),
        "transformers, unsorted": run(list(range(len(sources))), with_theirs),
        "triform": run(by_length, with_ours),
    }


def cases(compiled: bool, run: Path | None, file: Path | None) -> Iterator[tuple[str, bool, Callable[[], Writers]]]:
    """What is measured: its name, whether all must write the same, and what makes the writers."""
    for name in DECODERS:
        for way in WAYS:
            for batch in BATCHES:
                yield (
                    f"{name}, {way}, batch {batch}",
                    way != "drawing",
                    lambda batch=batch, name=name, way=way: decoders(batch, name, way, compiled and way == "greedy"),
                )
    yield f"translation, 5 beams, batch {BATCH}", True, translators
    if run is not None and file is not None:
        yield f"translation, trained, 5 beams, batch {BATCH}", True, lambda: trained_translators(run, file)


def main(rounds: int, threads: int, only: str, compiled: bool, run: Path | None, file: Path | None) -> None:
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    print(f"{platform.machine()}, {threads} threads, torch {torch.__version__}, {rounds} rounds")
    for title, same, make in cases(compiled, run, file):
        if only not in title:
            continue
        torch.manual_seed(0)
        torch.compiler.reset()  # a batch of its own size
        writers = make()
        written = [write()[1] for write in writers.values()]
        for other in written if same else ():
            equal = sum(a == b for a, b in zip(written[0], other, strict=True))
            assert equal >= 0.9 * len(other), f"{title}: only {equal} of {len(other)} rows are the same"
        speeds: dict[str, list[float]] = {name: [] for name in writers}
        for _ in range(rounds):
            for name, write in writers.items():
                began = clock()
                n, _ = write()
                speeds[name].append(n / (clock() - began))
        print(title)
        for name, values in speeds.items():
            ratios = [ours / theirs for ours, theirs in zip(values, speeds["transformers"], strict=True)]
            print(f"  {name:24} {statistics.median(values):8.1f} /s {statistics.median(ratios):6.2f} times", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name holds these words")
    parser.add_argument("--compiled", action="store_true", help="greedy also with a compiled model; takes minutes more")
    parser.add_argument("--run", type=Path, help="a run that translates, with model/placement=post, for --sources")
    parser.add_argument("--sources", type=Path, help="lines that it translates")
    options = parser.parse_args()
    main(options.rounds, options.threads, options.only, options.compiled, options.run, options.sources)
