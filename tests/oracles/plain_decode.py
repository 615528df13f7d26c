"""Greedy decoding without any cache: the whole sequence goes through the model for every token."""

from collections.abc import Callable, Collection, Sequence

import numpy as np


def plain_decode(
    logits_of: Callable[[np.ndarray], np.ndarray],
    prompt: Sequence[int],
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
) -> tuple[list[int], float]:
    """(generated tokens with the first stop token included, smallest top-1/top-2 gap on the way).

    logits_of takes int32 ids [T] and returns the logits [V] that follow the last one.
    """
    sequence, gap = list(prompt), np.inf
    for _ in range(max_new_tokens):
        logits = np.asarray(logits_of(np.array(sequence, np.int32)))
        second, first = np.sort(logits)[-2:]
        gap = min(gap, float(first - second))
        sequence.append(int(logits.argmax()))
        if sequence[-1] in stop_ids:
            break
    return sequence[len(prompt) :], gap
