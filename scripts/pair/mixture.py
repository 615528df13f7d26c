"""The texts a drafter learns from: the target's answers and a share of the corpus."""

import numpy as np

from scripts.pair.documents import Documents, Rows, Special, pack

HELD_ONE_IN = 50


def drafter_rows(
    answers: Documents, corpus: Documents, corpus_share: float, width: int, special: Special, seed: int
) -> tuple[Rows, dict[str, Rows]]:
    """(rows to train on, rows held out: ``answers`` and ``corpus``). Shares count tokens; plain texts are
    left out.
    """
    order = np.random.default_rng(seed).permutation(len(answers.lengths))
    held = max(1, len(order) // HELD_ONE_IN)
    answers_held, answers_kept = answers.take(order[:held]), answers.take(order[held:])
    chats = np.flatnonzero(corpus.prompts > 0)
    chats = np.random.default_rng(seed + 1).permutation(chats)
    wanted = answers.lengths.sum() * corpus_share / (1 - corpus_share)
    count = int(np.searchsorted(np.cumsum(corpus.lengths[chats]), wanted)) + 1
    corpus_held, corpus_kept = (
        corpus.take(chats[: max(1, count // HELD_ONE_IN)]),
        corpus.take(chats[count // HELD_ONE_IN : count]),
    )
    mixed = answers_kept.joined(corpus_kept)
    return pack(mixed, width, special, seed), {
        "answers": pack(answers_held, width, special, seed),
        "corpus": pack(corpus_held, width, special, seed),
    }
