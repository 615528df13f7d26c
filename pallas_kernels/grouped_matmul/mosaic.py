"""Routed experts on Hopper's tensor cores (`mosaic_kernel`): INT4 tiles, each hit expert read once.

Two products; before them and between, kernels by way of Triton gather the tokens' rows and work out the
activation. A program takes a block of token rows, a strip of output features and, in the first product, a
part of the inputs, so that a single token still fills the chip.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels import device, tuning
from pallas_kernels.grouped_matmul import grouping
from pallas_kernels.grouped_matmul.tiles import LINES, ROWS, ExpertTiles

FEWEST_ROWS = 8
"""Token rows that a block has at least: columns of one product."""

FEW = 16
"""Assignments of tokens to experts up to which there are few blocks."""

EMPTY = 2
"""Assignments for each block that there can be, up to which every one gets a block (`gather_kernel`)."""


@dataclass(frozen=True)
class Sizes:
    """``most_rows``: token rows of a block, 8 times a power of two. ``stages``: steps in flight. Steps that a
    program has at least: ``steps_of_few`` in the first product where there are few blocks, else
    ``steps_of_many``; ``steps_of_down`` in the second.
    """

    most_rows: int
    stages: int
    steps_of_few: int
    steps_of_many: int
    steps_of_down: int


def supports(dtype: jnp.dtype, rounding: str) -> bool:
    """Whether this device runs the kernel, for tokens of ``dtype`` and weights rounded so."""
    return device.is_hopper() and dtype == jnp.bfloat16 and rounding == "bfloat16"


def expert_mlp(
    x: jax.Array,
    expert_ids: jax.Array,
    expert_weights: jax.Array,
    experts,
    *,
    rounding: str,
    sizes: Sizes | None = None,
) -> jax.Array:
    """See `pallas_kernels.grouped_matmul.api.expert_mlp`. ``sizes``: the device's own (`tuning`) if None.

    Raises NotImplementedError off Hopper, for other dtypes than bfloat16, for weights that are not tiles and
    for more than a thousand tokens.
    """
    if not isinstance(experts, ExpertTiles):
        raise NotImplementedError("takes experts as tiles")
    if not supports(x.dtype, rounding):
        raise NotImplementedError(f"a kernel for Hopper GPUs, not for {x.dtype} with {rounding} rounding")
    if len(expert_ids) > grouping.CROWD:
        raise NotImplementedError(f"{len(expert_ids)} tokens")
    # Imported late: where there is no GPU, Pallas may have no Mosaic either.
    from pallas_kernels.grouped_matmul.mosaic_kernel import multiply

    sizes = sizes or tuning.sizes("grouped_matmul", "mosaic_gpu", Sizes)
    product = partial(multiply, stages=sizes.stages)
    return blocked(x, expert_ids, expert_weights, experts, product, sizes)


def blocked(
    x: jax.Array,
    ids: jax.Array,
    weights: jax.Array,
    experts: ExpertTiles,
    multiply: Callable,
    sizes: Sizes,
    *,
    interpret: bool = False,
) -> jax.Array:
    """The whole operation around ``multiply`` (see `mosaic_kernel.multiply`); with ``interpret`` what is
    beside it runs anywhere.
    """
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.grouped_matmul.activation_kernel import activate
    from pallas_kernels.grouped_matmul.gather_kernel import gather

    T, K = ids.shape
    count, _, steps, _, _ = experts.gate_up.shape
    rows = grouping.rows_a_block(T * K, count, FEWEST_ROWS, sizes.most_rows)
    if T == 1:
        # Every expert's block is the token.
        taken, owners, counts, places = x[None, :1], ids[0], None, jnp.arange(K, dtype=jnp.int32)[None]
    elif grouping.count(T, K, count, rows) * EMPTY >= T * K:
        taken, owners, counts, places = gather(x, ids, rows, interpret=interpret)
    else:
        owners, tokens, places = grouping.group(ids, count, rows)
        taken, counts = x[jnp.maximum(tokens, 0)], jnp.sum(tokens >= 0, axis=1, dtype=jnp.int32)
    ways = splits(steps, T * K, sizes)
    if ways == 1:
        inner = multiply(taken, owners, counts, experts.gate_up, result="activated")
    else:
        sums = multiply(taken, owners, counts, experts.gate_up, splits=ways, result="sums")
        inner = activate(sums, counts, x.dtype, interpret=interpret)
    strips, steps, lines = experts.down.shape[1:4]
    each = strips_each(strips, steps, T, sizes)
    y = multiply(inner, owners, counts, experts.down, strips_each=each, result="rows")
    return grouping.combined(y.reshape(-1, strips * lines // LINES * ROWS), places, ids, weights)


def splits(steps: int, assigned: int, sizes: Sizes) -> int:
    """Parts of the first product's inputs, of as few steps as still hide the memory's latency: the fewer
    blocks, the more programs are wanted of each.
    """
    return divisor(steps, sizes.steps_of_few if assigned <= FEW else sizes.steps_of_many)


def strips_each(strips: int, steps: int, tokens: int, sizes: Sizes) -> int:
    """Strips that a program of the second product does, so that it has steps enough."""
    return divisor(strips, 1, -(-sizes.steps_of_down // steps) if tokens > 1 else 1)


def divisor(size: int, least: int, most: int | None = None) -> int:
    """The largest divisor of ``size`` that leaves parts of ``least`` or more and is not above ``most``."""
    return max(
        n
        for n in range(1, size + 1)
        if size % n == 0 and (n == 1 or size // n >= least) and n <= (most or size)
    )
