"""Several continuations of each row at a time, of which the likeliest whole is kept."""

import torch
from jaxtyping import Int
from torch import Tensor

from triform.generation.rows import Rows
from triform.generation.sampling import Repetition

STOPS = (False, True, "never")


class BeamSearch:
    """The likeliest rows found by going on with the best `num_beams` of each at every step (Graves 2012).

    The score of a row that has ended is the sum of its log-probabilities, prompt excluded, divided by
    n ** `length_penalty` (n new tokens, the end included). A search keeps the best `num_beams` of those. It
    considers twice as many continuations as beams, so that enough go on however many end; of those that end only the
    best `num_beams` count. In all of this the same as `generate` of `transformers`.

    Args:
        num_beams: at least 1. Where fewer continuations exist there are fewer beams.
        length_penalty: above 0 favours long rows (1: the mean log-probability), below 0 short ones.
        early_stopping: when a search ends that has `num_beams` ended rows. False: when the best row that goes on, were
            it to end now, would be below the worst kept. "never": when it would be so at any length it may yet come
            to, which is exact, and differs only for `length_penalty` > 0. True: at once.

    Raises:
        ValueError: `num_beams` < 1, or an unknown `early_stopping`.
    """

    def __init__(self, num_beams: int, length_penalty: float, early_stopping: bool | str) -> None:
        if num_beams < 1:
            raise ValueError(f"generate: num_beams={num_beams} searches nothing; set it to at least 1 (greedy)")
        if early_stopping not in STOPS:
            raise ValueError(
                f"generate: early_stopping={early_stopping!r} is unknown; set it to False, True or 'never'"
            )
        self.num_beams, self.length_penalty, self.early_stopping = num_beams, length_penalty, early_stopping

    def __call__(
        self,
        rows: Rows,
        n_steps: int,
        repetition: Repetition | None,
        vocab_size: int | None,
        eos_id: int | None,
        pad_id: int,
    ) -> Int[Tensor, "batch out_len"]:
        """The rows with what was found behind them; see `generate`."""
        n_searches, begin, device = len(rows), rows.length, rows.buffer.device
        out = rows.buffer.new_full((n_searches, begin + n_steps), pad_id)
        out[:, :begin] = rows.ids
        searches = torch.arange(n_searches, device=device)  # those still going on, by their row of `out`
        scores = torch.zeros((n_searches, 1), device=device)  # of each beam
        kept = out[:, None].repeat(1, self.num_beams, 1)  # ended rows, the best first
        kept_scores = torch.full((n_searches, self.num_beams), -torch.inf, device=device)
        lengths = out.new_zeros((n_searches, self.num_beams))  # new tokens of each
        longest = 0

        for n in range(1, n_steps + 1):
            log_probabilities = rows.next_logits()[:, :vocab_size].float().log_softmax(dim=-1)
            if repetition is not None:
                log_probabilities = repetition(log_probabilities)
            size, n_beams = log_probabilities.shape[1], scores.shape[1]
            sums = (scores[:, :, None] + log_probabilities.unflatten(0, (-1, n_beams))).flatten(1)
            found, places = sums.topk(min(2 * self.num_beams, sums.shape[1]))  # searches candidates
            beams, tokens = places // size, places % size
            first = torch.arange(len(searches), device=device)[:, None] * n_beams
            ends = torch.full_like(tokens, n == n_steps, dtype=torch.bool)
            if eos_id is not None:
                ends |= tokens == eos_id

            # Those that end join the kept.
            best = slice(0, self.num_beams)
            ended_scores = (found / n**self.length_penalty).masked_fill(~ends, -torch.inf)[:, best]
            if n == n_steps or bool(ends[:, best].any()):
                ended = out.new_full((*ended_scores.shape, out.shape[1]), pad_id)
                ended[:, :, : rows.length] = rows.ids[first + beams[:, best]]
                ended[:, :, rows.length] = tokens[:, best]
                kept_scores, places = torch.cat((kept_scores, ended_scores), dim=1).topk(self.num_beams)
                kept = torch.cat((kept, ended), dim=1).take_along_dim(places[:, :, None], dim=1)
                lengths = torch.cat((lengths, torch.full_like(tokens[:, best], n)), dim=1).take_along_dim(places, dim=1)

            # The others go on.
            scores, places = found.masked_fill(ends, -torch.inf).topk(min(self.num_beams, found.shape[1]))
            going = self._may_improve(scores[:, 0], kept_scores, n, n_steps) & (n < n_steps)
            done = ~going
            if done.any():
                out[searches[done]] = kept[done, 0]
                longest = max(longest, int(lengths[done, 0].max()))
                if done.all():
                    break
            parents, tokens = first + beams.take_along_dim(places, dim=1), tokens.take_along_dim(places, dim=1)
            parents, tokens = parents[going].flatten(), tokens[going].flatten()
            searches, scores, kept, kept_scores, lengths = (
                of_each[going] for of_each in (searches, scores, kept, kept_scores, lengths)
            )
            rows.select(parents, same_source=scores.shape[1] == n_beams and not done.any())
            rows.append(tokens)
            if repetition is not None:
                repetition.select(parents)
                repetition.add(tokens)
        return out[:, : begin + longest]

    def _may_improve(self, best: Tensor, kept_scores: Tensor, n: int, n_steps: int) -> Tensor:
        """Whether a row that goes on may yet come to be better than the worst kept, for each search."""
        length = n_steps if self.early_stopping == "never" and self.length_penalty > 0 else n
        worst = kept_scores[:, -1]  # -inf until there are as many as beams
        may = best / length**self.length_penalty > worst
        return may & worst.isneginf() if self.early_stopping is True else may
