"""Blocks of token rows in one GPU kernel: counting, and copying of no more rows than there are.

Every assignment of a token to an expert has a block. It holds all assignments to that expert if this is the
first of them, or the first after as many as fill a block; else it stays empty.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.results import result
from pallas_kernels.triton import iota, load, store


def gather_kernel(ids_ref, x_ref, expert_ref, count_ref, place_ref, taken_ref, *, chosen: int) -> None:
    """One assignment. References: the experts of all assignments [A]; tokens [T, M]; its own block's expert
    and how many rows it has, its own place, and its block's rows [R, M].
    """
    assigned, (rows, width) = ids_ref.shape[0], taken_ref.shape
    own, index = pl.program_id(0), iota(pl.next_power_of_2(assigned))
    held = index < assigned
    ids = jnp.where(held, load(ids_ref, index, mask=held), -1)
    expert = jnp.sum(jnp.where(index == own, ids, 0))
    same = ids == expert
    # An assignment's rank among those to the same expert, from 1.
    ranks = jnp.where(same, jnp.cumsum(same.astype(jnp.int32)), 0)
    count, rank = jnp.max(ranks), jnp.sum(jnp.where(index == own, ranks, 0))
    before = lax.div(rank - 1, jnp.int32(rows)) * rows

    def of_rank(rank):
        return jnp.sum(jnp.where(ranks == rank, index, 0))

    begins = (rank == before + 1) & (expert >= 0)
    filled = jnp.where(begins, jnp.minimum(count - before, rows), 0)
    expert_ref[...], count_ref[...] = expert, filled
    place_ref[...] = of_rank(before + 1) * rows + rank - before - 1

    @pl.when(begins)
    def _():
        channel = iota(pl.next_power_of_2(width))
        inside = channel < width

        def copy(row, _):
            token = lax.div(of_rank(before + 1 + row), jnp.int32(chosen))
            values = load(x_ref, jnp.broadcast_to(token, channel.shape), channel, mask=inside)
            store(taken_ref, values, row, channel, mask=inside)

        lax.fori_loop(0, filled, copy, None)


def gather(
    x: jax.Array, ids: jax.Array, rows: int, *, interpret: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Blocks of at most ``rows`` token rows of one expert; with ``interpret`` anywhere.

    Args:
      x: [T, M] tokens.
      ids: [T, K] int32, the different experts of each token; -1 for none.

    Returns:
      The blocks' rows [T x K, rows, M], anything where there is no token. The blocks' experts and how many
      rows are tokens, [T x K] int32. The row block * rows + r that a token's k-th choice became, [T, K]
      int32.
    """
    (T, M), K = x.shape, ids.shape[1]

    def shape(*sizes: int, dtype) -> jax.ShapeDtypeStruct:
        return result(x, sizes, dtype)

    one = pl.BlockSpec((None,), lambda a: (a,))
    experts, counts, places, taken = pl.pallas_call(
        partial(gather_kernel, chosen=K),
        grid=(T * K,),
        in_specs=[pl.BlockSpec((T * K,), lambda a: (0,)), pl.BlockSpec((T, M), lambda a: (0, 0))],
        out_specs=(one, one, one, pl.BlockSpec((None, rows, M), lambda a: (a, 0, 0))),
        out_shape=(
            *[shape(T * K, dtype=jnp.int32)] * 3,
            shape(T * K, rows, M, dtype=x.dtype),
        ),
        compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=1),
        interpret=interpret,
        name="gather_tokens",
    )(ids.reshape(-1), x)
    return taken, experts, counts, places.reshape(T, K)
