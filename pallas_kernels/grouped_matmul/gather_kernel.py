"""Blocks of token rows in one GPU kernel: counting, and copying of no more rows than there are.

Every assignment of a token to an expert has a block. It holds all assignments to that expert if this is the
first of them, or the first after as many as fill a block; else it stays empty. Up to `ORDERED` assignments
the empty blocks come last: among the others their programs would keep multiprocessors from work.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.results import result
from pallas_kernels.triton import iota, load, store

ORDERED = 128
"""For more, comparing all with all in every program takes longer than the order saves: with 136 of Kimi
K2.6's on one of eight devices gathering took 6.1 us of an H200 for 2.8.
"""


def gather_kernel(ids_ref, x_ref, expert_ref, count_ref, place_ref, taken_ref, *, chosen: int) -> None:
    """One assignment. References: the experts of all assignments [A]; tokens [T, M]; the blocks' experts and
    how many rows they have [A]; this assignment's place; the blocks' rows [A, R, M].
    """
    assigned, (_, rows, width) = ids_ref.shape[0], taken_ref.shape
    own, index = pl.program_id(0), iota(pl.next_power_of_2(assigned))
    held = index < assigned
    ids = jnp.where(held, load(ids_ref, index, mask=held), -1)
    expert = jnp.sum(jnp.where(index == own, ids, 0))
    same = ids == expert
    # An assignment's rank among those to the same expert, from 1.
    if assigned <= ORDERED:
        earlier = (ids[:, None] == ids[None]) & (index[:, None] <= index[None])
        all_ranks = jnp.sum(earlier.astype(jnp.int32), axis=0)
        ranks = jnp.where(same, all_ranks, 0)
        beginning = ((ids >= 0) & (lax.rem(all_ranks - 1, jnp.int32(rows)) == 0)).astype(jnp.int32)
    else:
        ranks, beginning = jnp.where(same, jnp.cumsum(same.astype(jnp.int32)), 0), None
    count, rank = jnp.max(ranks), jnp.sum(jnp.where(index == own, ranks, 0))
    before = lax.div(rank - 1, jnp.int32(rows)) * rows

    def of_rank(rank):
        return jnp.sum(jnp.where(ranks == rank, index, 0))

    def block_of(assignment, begins):
        """Which block is the assignment's own."""
        if beginning is None:
            return assignment
        begun = jnp.sum(jnp.where(index < assignment, beginning, 0))
        return jnp.where(begins, begun, jnp.sum(beginning) + assignment - begun)

    begins = (rank == before + 1) & (expert >= 0)
    filled = jnp.where(begins, jnp.minimum(count - before, rows), 0)
    block = block_of(own, begins)
    expert_ref[block], count_ref[block] = expert, filled
    place_ref[...] = block_of(of_rank(before + 1), True) * rows + rank - before - 1

    @pl.when(begins)
    def _():
        channel = iota(pl.next_power_of_2(width))
        inside = channel < width

        def copy(row, _):
            token = lax.div(of_rank(before + 1 + row), jnp.int32(chosen))
            values = load(x_ref, jnp.broadcast_to(token, channel.shape), channel, mask=inside)
            store(taken_ref, values, block, row, channel, mask=inside)

        lax.fori_loop(0, filled, copy, None)


def gather(
    x: jax.Array, ids: jax.Array, rows: int, *, interpret: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Blocks of at most ``rows`` token rows of one expert; with ``interpret`` anywhere.

    Args:
      x: [T, M] tokens, or more, of which the first T are taken.
      ids: [T, K] int32, the different experts of each token; -1 for none.

    Returns:
      The blocks' rows [T x K, rows, M], anything where there is no token. The blocks' experts and how many
      rows are tokens, [T x K] int32. The row block * rows + r that a token's k-th choice became, [T, K]
      int32.
    """
    (T, K), M = ids.shape, x.shape[1]

    def shape(*sizes: int, dtype) -> jax.ShapeDtypeStruct:
        return result(x, sizes, dtype)

    every = pl.BlockSpec((T * K,), lambda a: (0,))
    experts, counts, places, taken = pl.pallas_call(
        partial(gather_kernel, chosen=K),
        grid=(T * K,),
        in_specs=[every, pl.BlockSpec(x.shape, lambda a: (0, 0))],
        out_specs=(
            *[every] * 2,
            pl.BlockSpec((None,), lambda a: (a,)),
            pl.BlockSpec((T * K, rows, M), lambda a: (0, 0, 0)),
        ),
        out_shape=(
            *[shape(T * K, dtype=jnp.int32)] * 3,
            shape(T * K, rows, M, dtype=x.dtype),
        ),
        compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=1),
        interpret=interpret,
        name="gather_tokens",
    )(ids.reshape(-1), x)
    return taken, experts, counts, places.reshape(T, K)
