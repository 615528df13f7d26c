"""Routed experts on TPUs (`tpu_kernel`): INT4 as published, unpacked in VMEM, each hit expert read once.

Two products with the activation at the end of the first. Tokens are put into blocks of rows of one expert.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels import device
from pallas_kernels.grouped_matmul import grouping
from pallas_kernels.grouped_matmul.tiles import ExpertTiles

ROWS_A_BLOCK = 16, 128
"""The fewest and the most token rows of a block."""


def expert_mlp(
    x: jax.Array, expert_ids: jax.Array, expert_weights: jax.Array, experts, *, rounding: str
) -> jax.Array:
    """See `pallas_kernels.grouped_matmul.api.expert_mlp`.

    Raises NotImplementedError where the program is not for a TPU, for weights that are not INT4 as published
    or do not fill registers, for other dtypes than bfloat16 and float32 and for more than a thousand tokens.
    """
    if not device.is_tpu():
        raise NotImplementedError("a kernel for TPUs")
    if isinstance(experts, ExpertTiles) or isinstance(experts.gate, jax.Array):
        raise NotImplementedError("takes INT4 as published")
    if x.dtype not in (jnp.bfloat16, jnp.float32) or x.shape[0] > grouping.CROWD:
        raise NotImplementedError(f"{x.shape[0]} tokens of {x.dtype}")
    # Imported late: it takes a while, and elsewhere nothing needs it.
    from jax.experimental.pallas import tpu as pltpu

    from pallas_kernels.grouped_matmul.tpu_kernel import LANES, multiply

    for each in experts:
        out, words = each.packed.shape[1:]
        if out % LANES or (words % LANES and words % 8):
            raise NotImplementedError(f"{8 * words} inputs and {out} outputs do not fill registers")
    limit = pltpu.get_tpu_info().vmem_capacity_bytes * 3 // 4
    return blocked(x, expert_ids, expert_weights, experts, partial(multiply, rounding=rounding, limit=limit))


def blocked(
    x: jax.Array, ids: jax.Array, weights: jax.Array, experts, multiply: Callable[..., jax.Array]
) -> jax.Array:
    """The whole operation around ``multiply`` (see `tpu_kernel.multiply`)."""
    count = experts.gate.packed.shape[0]
    rows = grouping.rows_a_block(ids.size, count, *ROWS_A_BLOCK)
    blocks = grouping.group(ids, count, rows)
    # What is put in the words' order is the few tokens, not their rows in the blocks.
    taken = by_nibble(x)[jnp.maximum(blocks.tokens, 0)]
    inner = multiply(taken, blocks.experts, (experts.gate, experts.up))
    y = multiply(by_nibble(inner), blocks.experts, (experts.down,))
    return grouping.combined(y.reshape(-1, x.shape[1]), blocks.places, ids, weights)


def by_nibble(x: jax.Array) -> jax.Array:
    """[..., inputs] in the order in which words are unpacked: first all that are the lowest nibble of one."""
    return x.reshape(*x.shape[:-1], -1, 8).swapaxes(-1, -2).reshape(x.shape)
