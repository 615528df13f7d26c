"""A single token's second product of experts, summed over them, in one kernel for Hopper.

A program makes 64 output features. Its warpgroups share out the tiles of all experts, two steps a turn, most
or all of them in flight. A turn's inputs are one column of a product, which has 8: what the other seven hold
nobody reads. An expert that is not here costs nothing.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, vector

from pallas_kernels.grouped_matmul import reference, tiles
from pallas_kernels.grouped_matmul.mosaic_kernel import COLUMNS, weights_of
from pallas_kernels.grouped_matmul.tiles import LINES, ROWS
from pallas_kernels.mosaic import put
from pallas_kernels.results import result

WARPGROUPS = 4
"""Of a program. Each unpacks weights by itself, so one waits for its copies while another computes."""

SHARED = 200 << 10
"""Bytes of shared memory for tiles and for the parts of sums."""

SWIZZLED = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
"""How wgmma takes its right operand."""


def in_flight(chosen: int, steps: int, width: int) -> int:
    """Turns that a warpgroup has in flight, with ``chosen`` experts of ``steps`` x ``width`` inputs. 0 where
    `finish` does not serve: inputs are no multiple of 128, or parts of sums leave no room for tiles.
    """
    if steps * width % 128:
        return 0
    deep = steps_a_turn(steps)
    parts = chosen * steps // deep
    room = max(SHARED - 4 * parts * ROWS, 0)
    return min(pl.cdiv(parts, WARPGROUPS), room // (4 * WARPGROUPS * deep * LINES * width))


def steps_a_turn(steps: int) -> int:
    """Two, where they divide."""
    return 2 - steps % 2


def put_first(ref, values) -> None:
    """Write ``values`` [n], as the warpgroup's threads hold them in runs, over the first rows of ``ref``
    [steps, 8, W] in shared memory, swizzled for wgmma.

    Row 0 of a swizzled tile of 8 rows by 64 lies as if it were not: a place's row is what is added to it.
    """
    _, _, width = ref.shape
    run = values.shape[0] // 128

    @plgpu.inline_mgpu(
        arg_types=(
            plgpu.RefType(SWIZZLED),
            plgpu.Layout.WG_STRIDED((values.shape[0],), vec_size=run),
        ),
    )
    def store(_, ref, values):
        i32, index = ir.IntegerType.get_signless(32), ir.IndexType.get()

        def constant(value: int):
            return arith.constant(i32, ir.IntegerAttr.get(i32, value))

        first = arith.muli(arith.remui(mgpu.thread_idx(), constant(128)), constant(run))
        step, column = arith.divui(first, constant(width)), arith.remui(first, constant(width))
        tile, lane = arith.shrui(column, constant(6)), arith.andi(column, constant(63))
        zero = constant(0)
        place = [arith.index_cast(index, at) for at in (step, zero, tile, zero, lane)]
        # Other warps may still multiply what this one is about to overwrite.
        mgpu.utils.warpgroup_barrier()
        vector.store(values.registers.item(), ref, place)

    store(ref, values)


@functools.partial(jax.jit, static_argnames=("interpret",))
def finish(
    inner: jax.Array, ids: jax.Array, weights: jax.Array, down: jax.Array, *, interpret: bool = False
) -> jax.Array:
    """The sum over k of weights[k] * (down[ids[k]] inner[k]).

    Args:
      inner: bfloat16 [K, F]; of an expert that is not here it may be anything.
      ids: [K] int32, -1 for an expert that is not here.
      weights: [K] float32.
      down: int32 [E, strips, steps, 9 parts, W], steps x W = F.
      interpret: run in JAX's simulator of a GPU, anywhere.

    Returns:
      bfloat16 [1, strips x parts x 64]. Outputs of experts are rounded to bfloat16, then summed in float32,
      in the order of k.

    Raises NotImplementedError where `in_flight` is 0.
    """
    K, inputs = inner.shape
    _, strips, steps, lines, width = down.shape
    parts = lines // LINES
    stages = in_flight(K, steps, width)
    if not stages:
        raise NotImplementedError(f"{K} experts of {inputs} inputs")
    deep = steps_a_turn(steps)
    turns, span = steps // deep, deep * width

    def kernel(inner_ref, id_ref, weight_ref, tile_ref, out_ref, tile_s, input_s, part_s, ready, done):
        feature, group = lax.axis_index("feature"), lax.axis_index("warpgroup")
        strip, part = lax.div(feature, parts), lax.rem(feature, parts)
        # All at once, since each takes as long as all.
        experts = [id_ref[k] for k in range(K)]
        shares = [weight_ref[k] for k in range(K)]
        here = [jnp.int32(0)]
        for expert in experts:
            here.append(here[-1] + (expert >= 0).astype(jnp.int32))
        mine = lax.div(here[K] * turns - group + WARPGROUPS - 1, WARPGROUPS)

        def write(ref, column) -> None:
            """The first column of [64, 1 or 8] as ``ref`` [1, 64]."""
            if interpret:
                ref[...] = column[:, :1].T
            else:
                put(ref, jnp.broadcast_to(column, (ROWS, COLUMNS)), jnp.int32(1))

        def place(turn):
            """Which k the warpgroup's turn is for, and which steps of its expert."""
            every = group + turn * WARPGROUPS
            ordinal = lax.div(every, turns)
            k = sum((before <= ordinal).astype(jnp.int32) for before in here[1:])
            return k, lax.rem(every, turns)

        def fetch(turn) -> None:
            k, few = place(turn)
            at = group * stages + lax.rem(turn, stages)
            # Chosen among those that were read: reading takes half a microsecond.
            expert = functools.reduce(jnp.add, (jnp.where(k == each, experts[each], 0) for each in range(K)))
            source = tile_ref.at[expert, strip, pl.ds(few * deep, deep), pl.ds(part * LINES, LINES)]
            plgpu.copy_gmem_to_smem(source, tile_s.at[at], ready.at[at])

        for first in range(stages):
            pl.when(first < mine)(functools.partial(fetch, jnp.int32(first)))

        @pl.loop(0, mine)
        def _(turn):
            k, few = place(turn)
            at = group * stages + lax.rem(turn, stages)
            channels = pl.ds(few * span, span)
            layout = plgpu.Layout.WG_STRIDED((span,), vec_size=span // 128)

            values = plgpu.load(inner_ref.at[k, channels], layout=layout)
            into = input_s.at[group]
            if interpret:
                into[:, 0] = values.reshape(deep, width)
            else:
                put_first(into, values)
            plgpu.commit_smem()
            plgpu.barrier_wait(ready.at[at])

            def product(accumulator):
                for step in range(deep):
                    plgpu.wgmma(accumulator, weights_of(tile_s.at[at, step], width), into.at[step].T)
                    plgpu.wgmma_wait(0)
                return accumulator[...]

            if interpret:
                found = sum(plain(tile_s[at, step], into[step]) for step in range(deep))
            else:
                found = pl.run_scoped(product, plgpu.ACC((ROWS, COLUMNS)))
            write(part_s.at[pl.ds(k * turns + few, 1)], found)

            @pl.when(turn + stages < mine)
            def _():
                # What threads have read, a copy may overwrite only behind a fence.
                plgpu.commit_smem()
                fetch(turn + stages)

        plgpu.barrier_arrive(done)

        @pl.when(group == 0)
        def _():
            plgpu.barrier_wait(done)
            total = jnp.zeros(ROWS, jnp.float32)
            for k, (expert, share) in enumerate(zip(experts, shares, strict=True)):
                found = [
                    plgpu.load(part_s.at[k * turns + few], layout=plgpu.Layout.WGMMA.reduce(1))
                    for few in range(turns)
                ]
                y = functools.reduce(jnp.add, found).astype(jnp.bfloat16).astype(jnp.float32)
                # What no expert wrote may be anything.
                total += jnp.where(jnp.broadcast_to(expert >= 0, ROWS), y * share, 0.0)
            write(out_ref.at[:, pl.ds(feature * ROWS, ROWS)], total.astype(jnp.bfloat16)[:, None])

    return plgpu.kernel(
        kernel,
        out_type=result(inner, (1, strips * parts * ROWS), jnp.bfloat16),
        scratch_types=[
            plgpu.SMEM((WARPGROUPS * stages, deep, LINES, width), jnp.int32),
            plgpu.SMEM((WARPGROUPS, deep, COLUMNS, width), jnp.bfloat16, transforms=SWIZZLED),
            plgpu.SMEM((K * turns, ROWS), jnp.float32),
            plgpu.Barrier(num_barriers=WARPGROUPS * stages),
            plgpu.Barrier(num_arrivals=WARPGROUPS),
        ],
        grid=(strips * parts,),
        grid_names=("feature",),
        num_threads=WARPGROUPS,
        thread_name="warpgroup",
        kernel_name="int4_single_token",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
        interpret=plgpu.InterpretGPUParams(detect_races=True) if interpret else None,
    )(inner, ids, weights, down)


def plain(tile: jax.Array, inputs: jax.Array) -> jax.Array:
    """What the simulator, which knows no code of threads, has for a product [64, 8]."""
    weights = reference.unpack(tiles.unpack(tile[None, None, None]), "bfloat16")[0]
    return weights.astype(jnp.float32) @ inputs.astype(jnp.float32).T
