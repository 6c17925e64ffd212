"""From a prompt or a source to new tokens, one at a time."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triform.generation.sampling import Sampler, greedy
from triform.models.decoder import Decoder
from triform.models.encoder_decoder import EncoderDecoder

NextLogits = Callable[[Tensor], Float[Tensor, "batch vocab_size"]]


@torch.no_grad()
def generate(
    model: nn.Module,
    input_ids: Int[Tensor, "batch seq_len"],
    padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
    *,
    max_new_tokens: int,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos_id: int | None = None,
    pad_id: int = 0,
    start_id: int | None = None,
    vocab_size: int | None = None,
    use_cache: bool = True,
    seed: int = 0,
    num_beams: int = 1,
) -> Int[Tensor, "batch out_len"]:
    """Greedy decoding, or sampling with `do_sample`; the model is in evaluation mode meanwhile.

    A decoder continues its prompts (padded on the left) and returns them with the new tokens behind. An
    encoder-decoder reads sources and returns target tokens, of which the first is `start_id`.

    A row that has chosen `eos_id` is filled with `pad_id`. Ends after `max_new_tokens`, when every row has
    ended, or when the model would have to read more than its `max_seq_len` tokens to go on.

    Args:
        temperature, top_k, top_p: see `Sampler`.
        vocab_size: the tokenizer's; a token beyond it (a row that pads the table) is never chosen.
        use_cache: keep keys and values, so that a step costs one token and not all of them; the same tokens.
        num_beams: 1; more is not implemented.

    Raises:
        ValueError: an encoder-only model, `start_id` missing or a prompt padded on the right, a prompt longer
            than `max_seq_len`, `max_new_tokens` < 1, `num_beams` other than 1, or see `Sampler`.
    """
    if num_beams != 1:
        raise ValueError(f"generate: num_beams={num_beams}, but there is no beam search; set num_beams=1")
    if max_new_tokens < 1:
        raise ValueError(f"generate: max_new_tokens={max_new_tokens} asks for nothing; set it to at least 1")
    choose = Sampler(temperature, top_k, top_p, seed, input_ids.device) if do_sample else greedy
    was_training = model.training
    model.eval()
    try:
        if isinstance(model, Decoder):
            ids, n_steps, next_logits = _prompted(model, input_ids, padding_mask, max_new_tokens, use_cache)
        elif isinstance(model, EncoderDecoder):
            ids, n_steps, next_logits = _translating(
                model, input_ids, padding_mask, start_id, max_new_tokens, use_cache
            )
        else:
            raise ValueError(
                f"generate: {type(model).__name__} writes no text; set model=decoder or model=encoder_decoder"
            )
        ended = torch.zeros_like(ids[:, 0], dtype=torch.bool)
        for _ in range(n_steps):
            logits = next_logits(ids)
            if vocab_size is not None:
                logits = logits[:, :vocab_size]
            token = choose(logits).masked_fill(ended, pad_id)
            ids = torch.cat((ids, token[:, None]), dim=1)
            if eos_id is not None:
                ended = ended | (token == eos_id)
                if ended.all():
                    break
        return ids
    finally:
        model.train(was_training)


def _prompted(
    model: Decoder, input_ids: Tensor, padding_mask: Tensor | None, max_new_tokens: int, use_cache: bool
) -> tuple[Tensor, int, NextLogits]:
    """The ids to begin with, how many may follow, and what gives the logits of the next."""
    length = input_ids.shape[1]
    if length > model.max_seq_len:
        raise ValueError(
            f"generate: a prompt of {length} tokens is longer than model.max_seq_len={model.max_seq_len}; shorten it"
        )
    if padding_mask is not None and not padding_mask[:, -1].all():
        raise ValueError("generate: a prompt ends with padding; pad prompts on the left")
    n_steps = min(max_new_tokens, model.max_seq_len - length + 1)
    cache = model.new_cache(length + n_steps) if use_cache else None

    def next_logits(ids: Tensor) -> Tensor:
        new = ids if cache is None else ids[:, cache.length :]
        padding = padding_mask
        if padding is not None:
            padding = torch.cat((padding, padding.new_ones(len(ids), ids.shape[1] - length)), dim=1)
        return model.head(model(new, padding, cache=cache).hidden[:, -1])

    return input_ids, n_steps, next_logits


def _translating(
    model: EncoderDecoder,
    input_ids: Tensor,
    padding_mask: Tensor | None,
    start_id: int | None,
    max_new_tokens: int,
    use_cache: bool,
) -> tuple[Tensor, int, NextLogits]:
    """The ids to begin with, how many may follow, and what gives the logits of the next."""
    if start_id is None:
        raise ValueError("generate: an encoder-decoder needs start_id, the token its targets begin with in training")
    memory = model.encode(input_ids, padding_mask)
    n_steps = min(max_new_tokens, model.decoder.max_seq_len)
    cache = model.new_cache(n_steps) if use_cache else None

    def next_logits(ids: Tensor) -> Tensor:
        new = ids if cache is None else ids[:, cache.length :]
        return model.head(model.decode(new, memory, padding_mask, cache=cache).hidden[:, -1])

    return input_ids.new_full((len(input_ids), 1), start_id), n_steps, next_logits
