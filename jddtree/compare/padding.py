"""Arrays padded to few widths, as the decoder pads prompts and trees: cases of many sizes share programs."""

import jax
import numpy as np

from pallas_kernels.tree_attention.api import pack_mask

WIDTH = 32


def padded(size: int) -> int:
    """The multiple of `WIDTH` that holds ``size``."""
    return -(-size // WIDTH) * WIDTH


def widen(array: np.ndarray | jax.Array, value: int = 0) -> np.ndarray:
    """[B, N, ...] as [B, padded(N), ...], filled up with ``value``."""
    array = np.asarray(array)
    room = [(0, 0)] * array.ndim
    room[1] = (0, padded(array.shape[1]) - array.shape[1])
    return np.pad(array, room, constant_values=value)


def widen_mask(visible: np.ndarray) -> jax.Array:
    """Who sees whom, bool [B, N, N], as the mask uint32 [B, M, W] of M = padded(N) slots. Added ones see
    themselves alone.
    """
    slots = visible.shape[1]
    wide = np.broadcast_to(np.eye(padded(slots), dtype=bool), (len(visible), *[padded(slots)] * 2)).copy()
    wide[:, :slots, :slots] = visible
    return pack_mask(wide)
