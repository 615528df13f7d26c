"""The prefixes that a tree of a given budget can hold, listed before any score is known.

A prefix with ranks r_1 .. r_d never scores above another whose ranks are nowhere larger, nor above that one's
own prefixes. Those are sum over j of (1 + r_1) ... (1 + r_j) prefixes, itself included: where that is more
than the budget, it is in no tree. What is left is short for small budgets (285 prefixes for a budget of 16
and depth 7), so a tree is one sum a prefix and one selection, with nothing that waits for the depth before.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class Prefixes:
    """C prefixes in order of their rank tuples, a prefix before its extensions.

    ranks: of every depth's token, ``width`` where the prefix has ended. parents: place of the prefix without
    the last token, -1 for depth 1. depths: 1 and up. last: the last token's rank.
    """

    ranks: Int[np.ndarray, "D C"]
    parents: Int[np.ndarray, " C"]
    depths: Int[np.ndarray, " C"]
    last: Int[np.ndarray, " C"]


@lru_cache(maxsize=64)
def listed(budget: int, depth: int, width: int, most: int) -> Prefixes | None:
    """All prefixes of up to ``depth`` tokens out of the best ``width`` a depth that can be among the best
    ``budget``; None when they are more than ``most``.
    """
    found: list[tuple[int, ...]] = []
    parents: list[int] = []
    # (ranks, place of the prefix they extend, product and sum of products up to there), next one last.
    waiting = [((rank,), -1, 1, 0) for rank in reversed(range(min(width, budget)))]
    while waiting:
        ranks, parent, product, total = waiting.pop()
        product *= ranks[-1] + 1
        total += product
        if total > budget:
            continue
        if len(found) == most:
            return None
        place = len(found)
        found.append(ranks)
        parents.append(parent)
        if len(ranks) < depth:
            # A child of rank r adds product * (r + 1).
            children = min(width, (budget - total) // product)
            waiting += [((*ranks, rank), place, product, total) for rank in reversed(range(children))]
    padded = [(*ranks, *[width] * (depth - len(ranks))) for ranks in found]
    return Prefixes(
        np.array(padded, np.int32).T,
        np.array(parents, np.int32),
        np.array([len(ranks) for ranks in found], np.int32),
        np.array([ranks[-1] for ranks in found], np.int32),
    )
