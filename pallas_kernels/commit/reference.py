"""Commits in plain JAX: a gather and a scatter for every leaf."""

from typing import Any

import jax
import jax.numpy as jnp


def commit(cache: Any, fresh: Any, slots: jax.Array, count: jax.Array, lengths: jax.Array) -> Any:
    """See `pallas_kernels.commit.api.commit`."""
    if slots.size == 1:
        # Twice, and the second is dropped: of one write XLA makes a read, a choice and a write.
        slots = jnp.broadcast_to(slots, (1, 2))
    order = jnp.arange(slots.shape[1], dtype=jnp.int32)
    row = jnp.arange(slots.shape[0])[:, None]

    def append(leaf: jax.Array, new: jax.Array) -> jax.Array:
        kept = take(new, slots)
        place = jnp.where(order < count[:, None], lengths[:, None] + order, leaf.shape[1])
        return leaf.at[row, place].set(kept.astype(leaf.dtype), mode="drop")

    return jax.tree.map(append, cache, fresh)


def take(values: jax.Array, slots: jax.Array) -> jax.Array:
    """values [B, N, ...] at slots [B, A]: [B, A, ...]."""
    return jnp.take_along_axis(values, slots.reshape(*slots.shape, *[1] * (values.ndim - 2)), axis=1)
