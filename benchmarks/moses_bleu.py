"""BLEU as papers on Multi30k have it, beside sacrebleu's own.

    triform translate RUN --num-beams 5 < test.en | python benchmarks/moses_bleu.py test.de [--lang de]

Reads one hypothesis a line. Published figures (Wu et al. 2021, https://arxiv.org/abs/2105.14462) are of text in lower
case, its punctuation normalised and split as Moses does, without splitting at each dash: of test_2016_flickr.de the
12,103 tokens of their table. sacrebleu's is of the text as it is, with case (13a). Needs `pip install sacremoses`.
"""

import argparse
import gzip
import sys
from collections.abc import Iterable
from pathlib import Path

import sacrebleu
from sacremoses import MosesPunctNormalizer, MosesTokenizer


def moses(lines: Iterable[str], lang: str) -> list[str]:
    """In lower case, normalised, tokens between blanks."""
    normalise, tokenise = MosesPunctNormalizer(lang), MosesTokenizer(lang)
    return [
        tokenise.tokenize(normalise.normalize(line.lower()), aggressive_dash_splits=False, return_str=True)
        for line in lines
    ]


def read(path: Path) -> list[str]:
    open_it = gzip.open if path.suffix == ".gz" else open
    with open_it(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=Path, help="a line for each hypothesis; .gz too")
    parser.add_argument("--lang", default="de", help="of the reference (default: de)")
    options = parser.parse_args()
    reference, hypotheses = read(options.reference), sys.stdin.read().splitlines()
    if len(reference) != len(hypotheses):
        parser.error(f"{len(hypotheses)} lines on standard input, {len(reference)} in {options.reference}")
    # Tokens are there already: sacrebleu only counts, which is what multi-bleu.perl does.
    split = sacrebleu.corpus_bleu(
        moses(hypotheses, options.lang), [moses(reference, options.lang)], tokenize="none", force=True
    )
    whole = sacrebleu.metrics.BLEU()
    print(f"Moses, lower case: {split.format(width=2)}")
    print(f"sacrebleu: {whole.corpus_score(hypotheses, [reference]).format(width=2)} {whole.get_signature()}")


if __name__ == "__main__":
    main()
