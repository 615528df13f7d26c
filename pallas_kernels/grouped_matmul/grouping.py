"""Which tokens go to which expert, in blocks of rows that one program multiplies, and back."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

CROWD = 1024
"""Tokens from which on the experts are better read once for many rows than in blocks of few."""


class Blocks(NamedTuple):
    """P blocks of R token rows; all rows of a block go to one expert.

    experts: [P] int32, -1 for a block without rows. tokens: [P, R] int32, -1 for a row without a token.
    places: [T, K] int32, the row p * R + r that a token's k-th choice became.
    """

    experts: jax.Array
    tokens: jax.Array
    places: jax.Array


def rows_a_block(assigned: int, experts: int, least: int, most: int) -> int:
    """Token rows a block, ``least`` times a power of two up to ``most``: what an expert gets on average and a
    half more.
    """
    rows = least
    while rows < most and 3 * assigned > 2 * rows * experts:
        rows *= 2
    return rows


def count(tokens: int, chosen: int, experts: int, rows: int) -> int:
    """Blocks that ``tokens`` x ``chosen`` assignments can need at most."""
    assigned = tokens * chosen
    return min(assigned, experts + assigned // rows)


def group(ids: jax.Array, experts: int, rows: int) -> Blocks:
    """Blocks in the order of their experts.

    ids: [T, K] int32, the different experts of each token; -1 for none. Everything is counted by comparing
    all with all: a few hundred assignments are compared sooner than a sort is started.
    """
    T, K = ids.shape
    flat = ids.reshape(-1)
    index = jnp.arange(T * K, dtype=jnp.int32)
    routed, same = flat >= 0, flat[:, None] == flat
    # How many earlier assignments went to the same expert. Every so many of them begin a block; the last that
    # begins one at or before an assignment, in the order of experts and ranks, begins the assignment's own.
    rank = jnp.sum(same & (index < index[:, None]), axis=1, dtype=jnp.int32)
    begins = routed & (rank % rows == 0)
    until = (flat < flat[:, None]) | (same & (rank <= rank[:, None]))
    block = jnp.maximum(jnp.sum(begins & until, axis=1, dtype=jnp.int32) - 1, 0)
    places = block * rows + rank % rows
    P = count(T, K, experts, rows)
    begun = begins & (block == jnp.arange(P, dtype=jnp.int32)[:, None])
    owner = jnp.max(jnp.where(begun, flat, -1), axis=1)
    taken = routed & (places == jnp.arange(P * rows, dtype=jnp.int32)[:, None])
    token = jnp.max(jnp.where(taken, index // K, -1), axis=1)
    return Blocks(owner, token.reshape(P, rows), places.reshape(T, K))


def combined(y: jax.Array, places: jax.Array, ids: jax.Array, weights: jax.Array) -> jax.Array:
    """Every token's outputs, weighted and summed in float32: [T, M] in y's dtype.

    y: [rows of all blocks, M]. places, ids, weights: [T, K].
    """
    found = y[places].astype(jnp.float32)
    # What no expert wrote may be anything.
    return jnp.sum(jnp.where((ids >= 0)[..., None], found * weights[..., None], 0.0), axis=1).astype(y.dtype)
