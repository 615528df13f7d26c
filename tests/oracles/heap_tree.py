"""The draft tree by a plain best-first search with a heap: slow, and easy to check by eye."""

import heapq
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class HeapTree:
    """A tree of n nodes; slot 0 is the root and slot i the node that was selected i-th."""

    tokens: np.ndarray  # [n] int32, token of slot i at index i-1
    depths: np.ndarray  # [n] int32, 1 for a child of the root
    ranks: np.ndarray  # [n] int32, the token's place in its depth's list, from 0
    parents: np.ndarray  # [n+1] int32, -1 for the root
    scores: np.ndarray  # [n] float64, sum of log-probabilities along the path


def heap_tree(token_ids: np.ndarray, log_probs: np.ndarray, budget: int) -> HeapTree:
    """The `budget` most probable prefixes under independent depths.

    token_ids [D, K] and log_probs [D, K] list each depth's tokens from best to worst. Every prefix enters
    the heap at most once: a popped prefix adds its next sibling and its best child. Equal scores are ordered
    by the tuple of ranks from the root. A prefix with a non-finite score is never selected.
    """
    depth_count, width = log_probs.shape
    scores = log_probs.astype(np.float64)
    tokens, depths, ranks, parents, selected_scores = [], [], [], [-1], []
    heap: list[tuple[float, tuple[int, ...], int]] = []

    def push(path: tuple[int, ...], parent: int) -> None:
        score = sum(scores[depth, rank] for depth, rank in enumerate(path))
        if np.isfinite(score):
            heapq.heappush(heap, (-score, path, parent))

    if depth_count and width:
        push((0,), 0)
    while heap and len(tokens) < budget:
        negative_score, path, parent = heapq.heappop(heap)
        slot = len(parents)
        tokens.append(token_ids[len(path) - 1, path[-1]])
        depths.append(len(path))
        ranks.append(path[-1])
        parents.append(parent)
        selected_scores.append(-negative_score)
        if path[-1] + 1 < width:
            push((*path[:-1], path[-1] + 1), parent)
        if len(path) < depth_count:
            push((*path, 0), slot)
    return HeapTree(
        tokens=np.array(tokens, np.int32),
        depths=np.array(depths, np.int32),
        ranks=np.array(ranks, np.int32),
        parents=np.array(parents, np.int32),
        scores=np.array(selected_scores, np.float64),
    )


def ancestors(parents: np.ndarray) -> np.ndarray:
    """[n+1, n+1] bool: [q, k] is true when slot k is slot q or one of its ancestors."""
    visible = np.zeros((len(parents), len(parents)), bool)
    for slot in range(len(parents)):
        node = slot
        while node >= 0:
            visible[slot, node] = True
            node = parents[node]
    return visible


def child_links(parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first_child, next_sibling), both [n+1] int32 with -1 for none; children in increasing slot order."""
    first_child = np.full(len(parents), -1, np.int32)
    next_sibling = np.full(len(parents), -1, np.int32)
    for slot in range(len(parents) - 1, 0, -1):
        next_sibling[slot] = first_child[parents[slot]]
        first_child[parents[slot]] = slot
    return first_child, next_sibling
