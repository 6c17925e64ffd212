"""What simple models reach on the same splits: the figures a trained model is read beside."""

import re
from collections import Counter

import numpy as np

from triform.data.prepare import Split

ORDERS = 3  # bytes alone, after one byte, after two
CHUNK = 1 << 19  # bytes counted at a time
READ = 1 << 24  # bytes of a split that are read at most, from its beginning: a baseline must not take longer than a run


def text_baselines(train: Split, validation: Split) -> dict[str, float]:
    """Bits per byte on `validation` of byte models counted on `train`.

    "uniform" gives all 256 bytes the same chance. "unigram" and "trigram" (two bytes of context) are interpolated with
    the next shorter context after Witten and Bell 1991: with n occurrences of a context, followed by t different
    bytes, p(byte) = (count + t * p_shorter(byte)) / (n + t). Documents follow each other without a mark. Of either
    split only the first `READ` bytes are read.
    """
    text, held_out = train.utf8["text"].flat[:READ], validation.utf8["text"].flat[:READ]
    models = [_Counted(text, order) for order in range(ORDERS)]
    bits = np.zeros(ORDERS)
    for start in range(0, len(held_out), CHUNK):
        before = max(start - ORDERS + 1, 0)
        chunk = held_out[before : start + CHUNK]
        chances = np.full(len(chunk), 1 / 256)
        for order, model in enumerate(models):
            chances[order:] = model.chances(chunk, chances[order:])
            bits[order] -= np.log2(chances[start - before :]).sum()
    unigram, _, trigram = (bits / len(held_out)).tolist()
    return {"uniform": 8.0, "unigram": unigram, "trigram": trigram}


class _Counted:
    """How often each byte follows each context of `order` bytes in a text."""

    def __init__(self, text: np.ndarray, order: int) -> None:
        self.order = order
        self.counts = np.zeros(256 ** (order + 1), dtype=np.uint32)  # of `READ` bytes at most
        for start in range(0, len(text), CHUNK):
            np.add.at(self.counts, _codes(text[start : start + CHUNK + order], order), np.uint32(1))
        by_context = self.counts.reshape(-1, 256)
        self.total, self.kinds = by_context.sum(axis=1), (by_context > 0).sum(axis=1)

    def chances(self, text: np.ndarray, shorter: np.ndarray) -> np.ndarray:
        """Of each byte that has a context, given its chances with a shorter one."""
        codes = _codes(text, self.order)
        contexts = codes // 256
        seen = np.maximum(self.total[contexts] + self.kinds[contexts], 1)
        longer = (self.counts[codes] + self.kinds[contexts] * shorter) / seen
        return np.where(self.total[contexts] > 0, longer, shorter)


def _codes(text: np.ndarray, order: int) -> np.ndarray:
    """Each byte with the `order` bytes before it as one number, the last byte lowest."""
    codes = np.zeros(max(0, len(text) - order), dtype=np.int64)
    for i in range(order + 1):
        codes = codes * 256 + text[i : i + len(codes)]
    return codes


def label_baselines(train: Split, validation: Split) -> dict[str, float]:
    """Accuracy on `validation` of the commonest training label, and of naive Bayes over words.

    The latter: multinomial over lower-cased words, one added to each count, words never seen in training left out
    (Manning, Raghavan, Schütze 2008, section 13.2). It reads the texts in the first `READ` bytes of either split.
    """
    assert train.labels is not None
    assert validation.labels is not None
    prior = np.bincount(train.labels).astype(float)
    words = [_words(train, i) for i in range(_readable(train))]
    number = {word: i for i, word in enumerate(dict.fromkeys(word for text in words for word in text))}
    counts = np.ones((len(prior), len(number)))
    for label, text in zip(train.labels, words, strict=False):
        for word, n in text.items():
            counts[label, number[word]] += n
    log_words = np.log(counts / counts.sum(axis=1, keepdims=True))
    log_prior = np.log(prior / prior.sum())
    n_right = 0
    judged = validation.labels[: _readable(validation)]
    for i, label in enumerate(judged):
        known = {number[word]: n for word, n in _words(validation, i).items() if word in number}
        scores = log_prior + log_words[:, list(known)] @ np.array(list(known.values()), dtype=float)
        n_right += int(scores.argmax()) == label
    majority = np.mean(validation.labels == prior.argmax())
    return {"majority": float(majority), "naive_bayes": n_right / len(judged)}


def _readable(split: Split) -> int:
    """How many texts end within `READ` bytes, at least one."""
    return max(int(np.searchsorted(split.utf8["text"].ends, READ, side="right")), 1)


def _words(split: Split, i: int) -> Counter[str]:
    return Counter(re.findall(r"\w+", split.texts(i)["text"].lower()))
