"""Caches that hold committed tokens alone: keys and values are written when their slots are accepted."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jddtree.models.target import Cache
from pallas_kernels.commit import api, reference


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
    return api.commit(cache, fresh, slots, count, lengths)


def take(values: Array, slots: Int[Array, "B A"]) -> Array:
    """values [B, N, ...] at slots: [B, A, ...]."""
    return reference.take(values, slots)


def append(cache: Cache, fresh: Cache, count: Int[Array, " B"], lengths: Int[Array, " B"]) -> Cache:
    """`commit` of the first ``count`` slots as they stand."""
    rows, width = jax.tree.leaves(fresh)[0].shape[:2]
    slots = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    # What nothing else reads XLA writes as it computes it; a kernel's arguments it would write twice.
    return reference.commit(cache, fresh, slots, count, lengths)
