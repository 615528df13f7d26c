"""The texts a drafter learns from: the target's answers and a share of the corpus."""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from scripts.pair.documents import KINDS, Documents
from scripts.pair.kinds import numbers_of

HELD_ONE_IN = 50
JUDGED = 16


def held_out(answers: Documents) -> tuple[Documents, Documents]:
    """(answers to learn from, answers to judge by), about 49 to 1. Answers to one prompt stay together."""
    starts = answers.starts()
    hashes = np.array(
        [
            zlib.crc32(answers.tokens[start : start + prompt].tobytes())
            for start, prompt in zip(starts, answers.prompts, strict=True)
        ],
        np.int64,
    )
    held = hashes % HELD_ONE_IN == 0
    if not held.any():
        held = hashes == hashes[0]
    return answers.take(np.flatnonzero(~held)), answers.take(np.flatnonzero(held))


def judged_prompts(held: Documents, seed: int) -> list[list[int]]:
    """Up to JUDGED different prompts, in turn from every kind."""
    order = np.random.default_rng(seed).permutation(len(held.lengths))
    starts, turns = held.starts(), {}
    for i in order:
        prompt = tuple(held.tokens[starts[i] : starts[i] + held.prompts[i]].tolist())
        turns.setdefault(int(held.kinds[i]), {})[prompt] = None
    ranked = [(turn, kind, prompt) for kind, each in turns.items() for turn, prompt in enumerate(each)]
    return [list(prompt) for _, _, prompt in sorted(ranked)[:JUDGED]]


def with_corpus(answers: Documents, corpus: Documents, share: float, seed: int) -> Documents:
    """The answers and random chats of the corpus, which come to ``share`` of all tokens."""
    chats = np.random.default_rng(seed + 1).permutation(np.flatnonzero(corpus.prompts > 0))
    wanted = answers.lengths.sum() * share / (1 - share)
    count = int(np.searchsorted(np.cumsum(corpus.lengths[chats]), wanted)) + 1
    return answers.joined(corpus.take(chats[:count]))


def shares_of(words: Sequence[str]) -> dict[str, float]:
    """Shares from 0 to 1 by kind, of texts KIND=SHARE. Raises InputError as `numbers_of`."""
    return numbers_of(words, "KIND=SHARE", most=1.0)


def thinned(prompts: Documents, shares: Mapping[str, float], seed: int) -> Documents:
    """The documents, of some kinds only a random share."""
    share = np.array([shares.get(kind, 1.0) for kind in KINDS])[prompts.kinds]
    kept = np.random.default_rng(seed + 2).random(len(share)) < share
    return prompts if kept.all() else prompts.take(np.flatnonzero(kept))
