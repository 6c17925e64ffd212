"""From a prompt or a source to new tokens."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from triform.generation.beam import BeamSearch
from triform.generation.rows import PromptReader, Reader, Rows, TargetReader, closed_up
from triform.generation.sampling import Repetition, Sampler, greedy, random_numbers
from triform.layers.joined import joined_projections
from triform.models.decoder import Decoder
from triform.models.heads import ClassificationHead, HiddenStates, RegressionHead
from triform.models.two_stacks import TwoStacks


def generate(
    model: nn.Module,
    input_ids: Int[Tensor, "batch seq_len"],
    padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
    *,
    max_new_tokens: int,
    num_beams: int = 1,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    eos_id: int | None = None,
    pad_id: int = 0,
    start_id: int | None = None,
    vocab_size: int | None = None,
    use_cache: bool = True,
    seed: int = 0,
    on_token: Callable[[Int[Tensor, " batch"]], bool] | None = None,
) -> Int[Tensor, "batch out_len"]:
    """Greedy decoding, beam search, or sampling with `do_sample`; the model is in evaluation mode meanwhile.

    A decoder continues its prompts (padded on the left) and returns them with the new tokens behind. An
    encoder-decoder reads sources and returns target tokens, of which the first is `start_id`.

    A row that has chosen `eos_id` is filled with `pad_id` and costs nothing more. Ends after `max_new_tokens`, when
    every row has ended, or when the model would have to read more than its `max_seq_len` tokens to go on. What a row
    becomes does not depend on the rows beside it, also where it is drawn (see `random_numbers`).

    To compile a step, compile the model in place before: `model.compile()`, or `model.decoder.compile()` of an
    encoder-decoder.

    Args:
        num_beams: rows that beam search goes on with for each prompt or source; 1: greedy, or sampling.
        temperature, top_k, top_p, min_p: see `Sampler`.
        repetition_penalty: see `Repetition`; of the prompt and what follows. In beam search it changes
            log-probabilities.
        length_penalty, early_stopping: see `BeamSearch`.
        vocab_size: the tokenizer's; a token beyond it (a row that pads the table) is never chosen.
        use_cache: keep keys and values, so that a step costs one token and not all of them; the same tokens.
        on_token: is told the new token of each row that has not ended, as soon as it is chosen, and says whether that
            was the last one. Not of a search.

    Raises:
        ValueError: an encoder-only model or one without token logits, `start_id` missing, a prompt that is empty,
            padded on the right or longer than `max_seq_len`, ids or a mask that do not fit, `max_new_tokens` < 1, a
            count that is not whole, `vocab_size` < 1, `length_penalty` not finite or huge, `num_beams` > 1 with
            `do_sample`; see also `Sampler`, `Repetition` and `BeamSearch`.
    """
    for name, number in {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "top_k": top_k}.items():
        if number is not None and (isinstance(number, bool) or not hasattr(number, "__index__")):
            raise ValueError(f"generate: {name}={number!r} is no whole number; set it to one")
    if max_new_tokens < 1:
        raise ValueError(f"generate: max_new_tokens={max_new_tokens} asks for nothing; set it to at least 1")
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"generate: vocab_size={vocab_size} leaves no token; set it to that of the tokenizer")
    if not abs(length_penalty) * math.log(max_new_tokens) < 700:  # else n ** length_penalty is beyond a float
        raise ValueError(
            f"generate: length_penalty={length_penalty} is beyond what {max_new_tokens} tokens allow; set it to a "
            f"small number such as 1, or 0 for none"
        )
    if do_sample and num_beams > 1:
        raise ValueError(
            f"generate: num_beams={num_beams} searches and do_sample draws; set num_beams=1, or do not draw"
        )
    search = BeamSearch(num_beams, length_penalty, early_stopping)
    sampler = Sampler(temperature, top_k, top_p, min_p) if do_sample else None
    plain = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if not isinstance(plain, Decoder | TwoStacks):
        raise ValueError(f"generate: {type(plain).__name__} writes no text; set model=decoder or model=encoder_decoder")
    padding_mask = _checked(plain, input_ids, padding_mask, {"eos_id": eos_id, "start_id": start_id})

    modes = [(module, module.training) for module in model.modules()]  # some may be in another than the rest
    model.eval()
    try:
        with torch.inference_mode(), joined_projections(plain) if model is plain else nullcontext():
            rows, n_steps = _begin(model, plain, input_ids, padding_mask, start_id, max_new_tokens, use_cache)
            repetition = None
            if repetition_penalty != 1:
                real = padding_mask if isinstance(plain, Decoder) else None
                repetition = Repetition(repetition_penalty, rows.ids, real, plain.vocab_size)
            if num_beams > 1:
                out = search(rows, n_steps, repetition, vocab_size, eos_id, pad_id)
            else:
                numbers = None if sampler is None else random_numbers(input_ids, padding_mask, n_steps, seed)
                out = _write(rows, n_steps, sampler, numbers, repetition, vocab_size, eos_id, pad_id, on_token)
        return out.clone()  # outside of inference mode: an ordinary tensor
    finally:
        for module, training in modes:
            module.training = training


def _begin(
    model: nn.Module,
    plain: Decoder | TwoStacks,
    input_ids: Tensor,
    padding_mask: Tensor | None,
    start_id: int | None,
    max_new_tokens: int,
    use_cache: bool,
) -> tuple[Rows, int]:
    """The rows as they begin, and how many tokens may follow.

    Args:
        plain: `model`, but for what `torch.compile` wraps around it.
    """
    reader: Reader
    if isinstance(plain, Decoder):
        begin, n_steps = input_ids, min(max_new_tokens, plain.max_seq_len - input_ids.shape[1] + 1)
        reader = PromptReader(model, plain, padding_mask, input_ids.shape[1] + n_steps)
    else:
        if start_id is None:
            raise ValueError(
                "generate: an encoder-decoder needs start_id, the token its targets begin with in training"
            )
        begin = input_ids.new_full((len(input_ids), 1), start_id)
        n_steps = min(max_new_tokens, plain.decoder.max_seq_len)
        reader = TargetReader(plain, input_ids, padding_mask)
    capacity = begin.shape[1] + n_steps
    # The last token is never read. A cache with room for it is never full: for a full one, which is contiguous,
    # torch.compile would compile the last step anew.
    return Rows(begin, capacity, reader, plain.new_cache(capacity) if use_cache else None), n_steps


def _write(
    rows: Rows,
    n_steps: int,
    sampler: Sampler | None,
    numbers: Tensor | None,
    repetition: Repetition | None,
    vocab_size: int | None,
    eos_id: int | None,
    pad_id: int,
    on_token: Callable[[Tensor], bool] | None,
) -> Tensor:
    """One token after another for each row, greedily or by `numbers`."""
    out: Tensor | None = None  # rows that have ended, beside those that have not; None: none has
    going = torch.arange(len(rows), device=rows.buffer.device)
    for step in range(n_steps):
        scores = rows.next_logits()[:, :vocab_size]
        if repetition is not None:
            scores = repetition(scores)
        tokens = greedy(scores) if sampler is None or numbers is None else sampler(scores, numbers[:, step])
        rows.append(tokens)
        if on_token is not None and on_token(tokens):
            break
        if repetition is not None:
            repetition.add(tokens)
        if eos_id is None:
            continue
        ended = tokens == eos_id
        if not ended.any():
            continue
        if out is None:
            out = torch.full_like(rows.buffer, pad_id)
        out[going[ended], : rows.length] = rows.ids[ended]
        live = closed_up(~ended)
        if len(live) == 0:
            return out[:, : rows.length]
        going = going[live]
        rows.select(live, live)
        numbers = None if numbers is None else numbers[live]
        if repetition is not None:
            repetition.select(live)
    if out is None:
        return rows.ids
    out[going, : rows.length] = rows.ids
    return out[:, : rows.length]


def _checked(
    model: Decoder | TwoStacks, input_ids: Tensor, padding_mask: Tensor | None, others: dict[str, Any]
) -> Tensor | None:
    """The mask; None where nothing is padded.

    Raises:
        ValueError: see `generate`.
    """
    what = "prompt" if isinstance(model, Decoder) else "source"
    if input_ids.ndim != 2 or input_ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"generate: input_ids are {input_ids.dtype} {list(input_ids.shape)}; give whole numbers, a row for each "
            f"{what}, such as torch.tensor([ids])"
        )
    n_rows, length = input_ids.shape
    if n_rows == 0 or length == 0:
        raise ValueError(
            f"generate: input_ids are {n_rows} rows of {length} tokens; give at least one {what} of one token"
        )
    if isinstance(model.head, ClassificationHead | RegressionHead | HiddenStates):
        raise ValueError(
            f"generate: {type(model.head).__name__} gives no logits of tokens; take a model that was trained to write"
        )
    if padding_mask is not None:
        if padding_mask.shape != input_ids.shape or padding_mask.dtype != torch.bool:
            raise ValueError(
                f"generate: padding_mask is {padding_mask.dtype} {list(padding_mask.shape)}, but input_ids are "
                f"{list(input_ids.shape)}; give a Bool for each id, True for real tokens"
            )
        padding_mask = None if padding_mask.all() else padding_mask
    if isinstance(model, Decoder):
        if length > model.max_seq_len:
            raise ValueError(
                f"generate: a prompt of {length} tokens is longer than model.max_seq_len={model.max_seq_len}; "
                f"shorten it"
            )
        if padding_mask is not None and not padding_mask[:, -1].all():
            raise ValueError("generate: a prompt ends with padding; pad prompts on the left")
    given = [("input_ids", int(input_ids.min())), ("input_ids", int(input_ids.max())), *others.items()]
    for name, token in given:
        source = name == "input_ids" and isinstance(model, TwoStacks)
        vocab_size: Any = model.source_vocab_size if source else model.vocab_size
        if token is not None and not hasattr(token, "__index__"):
            raise ValueError(f"generate: {name}={token!r} is no token; give the number of one")
        if token is not None and not 0 <= token < vocab_size:
            raise ValueError(
                f"generate: {name}: token {token} is not one of model.vocab_size={vocab_size}; give ids of the "
                f"model's tokenizer"
            )
    return padding_mask
