"""The routed experts around a kernel that multiplies blocks of token rows by INT4 as published, each hit
expert read once.

Two products with the activation at the end of the first. Tokens are put into blocks of rows of one expert.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from pallas_kernels.grouped_matmul import grouping
from pallas_kernels.grouped_matmul.tiles import ExpertTiles

FEWEST_ROWS = 16
"""Token rows that a block has at least: matrix units take no fewer."""


def require(experts) -> None:
    """Raise NotImplementedError for weights that are not INT4 as published."""
    if isinstance(experts, ExpertTiles) or isinstance(experts.gate, jax.Array):
        raise NotImplementedError("takes INT4 as published")


def blocked(
    x: jax.Array,
    ids: jax.Array,
    weights: jax.Array,
    experts,
    multiply: Callable[..., jax.Array],
    most_rows: int,
) -> jax.Array:
    """The whole operation, see `api.expert_mlp`, in blocks of at most ``most_rows`` token rows.

    ``multiply`` maps x [P, R, inputs] in the order `by_nibble`, the blocks' experts [P] (-1: nobody reads the
    block) and one or two INT4 weights to [P, R, out] in x's dtype: their product with x, or silu of the
    first's times the second's.
    """
    x, count = x[: len(ids)], experts.gate.packed.shape[0]
    rows = grouping.rows_a_block(ids.size, count, FEWEST_ROWS, most_rows)
    blocks = grouping.group(ids, count, rows)
    # What is put in the words' order is the few tokens, not their rows in the blocks.
    taken = by_nibble(x)[jnp.maximum(blocks.tokens, 0)]
    inner = multiply(taken, blocks.experts, (experts.gate, experts.up))
    y = multiply(by_nibble(inner), blocks.experts, (experts.down,))
    return grouping.combined(y.reshape(-1, x.shape[1]), blocks.places, ids, weights)


def weight_of(q: jax.Array, scale: jax.Array, rounding: str, dtype: jnp.dtype) -> jax.Array:
    """q x scale in ``dtype``, inside of a kernel. ``rounding``: see `api.expert_mlp`."""
    exact = q.astype(jnp.float32) * scale
    return (exact.astype(jnp.bfloat16) if rounding == "bfloat16" else exact).astype(dtype)


def activated(sums: Sequence[jax.Array]) -> jax.Array:
    """The one product, or silu of the first times the second."""
    return sums[0] if len(sums) == 1 else sums[0] * jax.nn.sigmoid(sums[0]) * sums[1]


def by_nibble(x: jax.Array) -> jax.Array:
    """[..., inputs] in the order in which words are unpacked: first all that are the lowest nibble of one."""
    return x.reshape(*x.shape[:-1], -1, 8).swapaxes(-1, -2).reshape(x.shape)
