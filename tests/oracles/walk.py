"""Following the target's tokens through a verified tree, one dictionary look-up a step."""

import numpy as np


def walk(node_tokens: np.ndarray, parents: np.ndarray, posterior: np.ndarray) -> tuple[list[int], int]:
    """(accepted slots from the root, bonus token).

    node_tokens [n] holds the token of slot i at index i-1, parents [n+1] the parent slot (-1 for the root),
    and posterior [n+1] the target's token at every slot.
    """
    children = {
        (int(parents[slot]), int(node_tokens[slot - 1])): slot for slot in range(len(parents) - 1, 0, -1)
    }
    accepted = [0]
    while (accepted[-1], int(posterior[accepted[-1]])) in children:
        accepted.append(children[accepted[-1], int(posterior[accepted[-1]])])
    return accepted, int(posterior[accepted[-1]])
