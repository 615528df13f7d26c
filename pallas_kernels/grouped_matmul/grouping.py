"""Which tokens go to which expert, in blocks of rows that one program multiplies."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Blocks(NamedTuple):
    """P blocks of R token rows; all rows of a block go to one expert.

    experts: [P] int32, -1 for a block without rows. tokens: [P, R] int32, -1 for a row without a token.
    places: [T, K] int32, the row p * R + r that a token's k-th choice became.
    """

    experts: jax.Array
    tokens: jax.Array
    places: jax.Array


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
    every = jnp.arange(experts, dtype=jnp.int32)
    # Of the same expert's assignments the earlier ones, and how many blocks the experts before it take.
    rank = jnp.sum((flat[:, None] == flat) & (index < index[:, None]), axis=1, dtype=jnp.int32)
    sizes = jnp.sum(flat == every[:, None], axis=1, dtype=jnp.int32)
    blocks = (sizes + rows - 1) // rows
    ends = jnp.sum(jnp.where(every <= every[:, None], blocks, 0), axis=1, dtype=jnp.int32)
    P = count(T, K, experts, rows)
    owner = jnp.sum(ends <= jnp.arange(P, dtype=jnp.int32)[:, None], axis=1, dtype=jnp.int32)
    before = jnp.sum(jnp.where(every < flat[:, None], blocks, 0), axis=1, dtype=jnp.int32)
    places = before * rows + rank
    row = jnp.arange(P * rows, dtype=jnp.int32)
    taken = (places == row[:, None]) & (flat >= 0)
    token = jnp.sum(jnp.where(taken, index // K + 1, 0), axis=1, dtype=jnp.int32) - 1
    return Blocks(jnp.where(owner < experts, owner, -1), token.reshape(P, rows), places.reshape(T, K))
