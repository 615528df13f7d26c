"""Caches that hold committed tokens alone: keys and values are written when their slots are accepted."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jddtree.models.target import Cache


def commit(
    cache: Cache, fresh: Cache, slots: Int[Array, "B A"], count: Int[Array, " B"], lengths: Int[Array, " B"]
) -> Cache:
    """Append the chosen slots of a pass to every row of a cache.

    Args:
      cache: leaves [B, S, ...]; row b is in use up to lengths[b].
      fresh: the same tree with leaves [B, N, ...].
      slots: the slots to keep, in order; the first count[b] of row b count.
      count: 0 leaves a row as it is.
      lengths: where row b's first kept slot goes. Rows past S are dropped.
    """
    if slots.size == 1:
        # Twice, and the second is dropped: of one write XLA makes a read, a choice and a write.
        slots = jnp.broadcast_to(slots, (1, 2))
    order = jnp.arange(slots.shape[1], dtype=jnp.int32)
    row = jnp.arange(slots.shape[0])[:, None]

    def append(leaf: Array, new: Array) -> Array:
        kept = take(new, slots)
        place = jnp.where(order < count[:, None], lengths[:, None] + order, leaf.shape[1])
        return leaf.at[row, place].set(kept.astype(leaf.dtype), mode="drop")

    return jax.tree.map(append, cache, fresh)


def take(values: Array, slots: Int[Array, "B A"]) -> Array:
    """values [B, N, ...] at slots: [B, A, ...]."""
    return jnp.take_along_axis(values, slots.reshape(*slots.shape, *[1] * (values.ndim - 2)), axis=1)


def append(cache: Cache, fresh: Cache, count: Int[Array, " B"], lengths: Int[Array, " B"]) -> Cache:
    """`commit` of the first ``count`` slots as they stand."""
    rows, width = jax.tree.leaves(fresh)[0].shape[:2]
    slots = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    return commit(cache, fresh, slots, count, lengths)
