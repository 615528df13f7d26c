"""INT4 tiles times token rows on Hopper: weights become the register operand of wgmma.

Output features are the rows of the product and tokens its columns, of which there may be as few as 8. Tiles
stream through shared memory, several in flight. A thread reads the words that are its own (`tiles`) and turns
two weights at a time into bfloat16: a shift, a mask with a bit pattern set, a subtraction, a multiplication.
Most blocks hold one token, so only columns that are tokens are written.
"""

import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, vector

from pallas_kernels.grouped_matmul.mosaic import FEWEST_ROWS
from pallas_kernels.grouped_matmul.tiles import GROUP, LINES, ROWS
from pallas_kernels.mosaic import put, token_rows


def weights_of(tile, width: int):
    """The tile in shared memory as bfloat16 [64, width] in wgmma's registers, q x scale rounded."""
    groups = width // GROUP

    @plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(),),
        return_type=plgpu.ShapeDtypeStruct((ROWS, width), jnp.bfloat16, layout=plgpu.Layout.WGMMA),
    )
    def convert(_, ref):
        ref = mgpu.memref_fold(ref, 0, 2)
        i32, index = ir.IntegerType.get_signless(32), ir.IndexType.get()
        bf16 = ir.BF16Type.get()
        pair, words = ir.VectorType.get((2,), bf16), ir.VectorType.get((groups,), i32)

        def constant(value: int):
            return arith.constant(i32, ir.IntegerAttr.get(i32, value))

        def read(at):
            return vector.load(words, ref, [arith.index_cast(index, at)])

        def word(vec, m: int):
            return vector.extract(vec, dynamic_position=[], static_position=[m])

        def pair_of(x):
            return mgpu.utils.bitcast(x, pair)

        thread = arith.remui(mgpu.thread_idx(), constant(128))
        row = arith.shrui(thread, constant(2))
        scales = read(arith.addi(arith.muli(row, constant(groups)), constant(256 * groups)))
        offset = pair_of(constant(0x43084308))
        registers = np.empty(mgpu.WGMMA_LAYOUT.registers_shape((ROWS, width)), dtype=object)
        for h in range(2):
            packed = read(arith.muli(arith.addi(thread, constant(128 * h)), constant(groups)))
            for m in range(groups):
                both = word(scales, (h * groups + m) // 2)
                pick = constant(0x3232 if m % 2 else 0x1010)
                scale = pair_of(mgpu.utils.prmt(both, both, pick))
                value = word(packed, m)
                for i in range(4):
                    two = value if i == 0 else arith.shrui(value, constant(4 * i))
                    two = arith.ori(arith.andi(two, constant(0x000F000F)), constant(0x43004300))
                    q = arith.subf(pair_of(two), offset)
                    registers[0, 4 * m + i, 0, 0, h, 0, 0, 0, 0] = arith.mulf(q, scale)
        return mgpu.FragmentedArray(_registers=registers, _layout=mgpu.WGMMA_LAYOUT, _is_signed=None)

    return convert(tile)


def activated(gate, up):
    """silu(gate) x up."""
    return gate / (1.0 + jnp.exp2(gate * -math.log2(math.e))) * up


@functools.partial(jax.jit, static_argnames=("splits", "stages", "strips_each", "result"))
def multiply(
    x: jax.Array,
    experts: jax.Array,
    counts: jax.Array | None,
    tiles: jax.Array,
    *,
    stages: int,
    splits: int = 1,
    strips_each: int = 1,
    result: Literal["sums", "rows", "activated"],
) -> jax.Array:
    """Blocks of token rows times the experts they go to.

    Args:
      x: bfloat16 [P, rows, K], a block's token rows, or [1, rows, K] for all; rows a multiple of 8, or below.
      experts: [P] int32, a block's expert; -1 for a block to leave out.
      counts: [P] int32, how many of a block's rows are tokens; 0 leaves it out too. Only for these rows the
        output is defined. None: all are.
      tiles: int32 [E, strips, steps, 9 parts, W].
      stages: steps in flight. splits: ways to cut K; a way is a program of its own.
      strips_each: strips a program does one after the other.
      result: "rows" and "activated" want a single split, "activated" two parts.

    Returns:
      "sums": of every split, float32 [parts, splits, P, rows, strips x 64]. "rows": bfloat16 [P, rows, strips
      x parts x 64]. "activated": silu(part 0) x part 1, bfloat16 [P, rows, strips x 64].
    """
    blocks = experts.shape[0]
    rows = x.shape[1]
    columns = -(-rows // FEWEST_ROWS) * FEWEST_ROWS
    _, strips, all_steps, lines, width = tiles.shape
    parts = lines // LINES
    written = 1 if result == "activated" else parts
    steps = all_steps // splits
    turns = strips_each * steps
    stages = min(stages, turns)

    def kernel(x_ref, expert_ref, *refs):
        *count_refs, tile_ref, out_ref, tile_s, x_s, barrier = refs
        block, group, split = (lax.axis_index(name) for name in ("block", "group", "split"))
        # Read at once, since each takes as long as all.
        expert, *count = [ref[block] for ref in (expert_ref, *count_refs)]
        (count,) = count or [jnp.int32(rows)]
        source = 0 if len(x) == 1 else block

        @pl.when((count > 0) & (expert >= 0))
        def _():
            def fetch(turn, slot):
                strip = group * strips_each + lax.div(turn, steps)
                step = split * steps + lax.rem(turn, steps)
                plgpu.copy_gmem_to_smem(tile_ref.at[expert, strip, step], tile_s.at[slot], barrier.at[slot])
                taken = x_ref.at[source, token_rows(rows, columns, split), pl.ds(step * width, width)]
                plgpu.copy_gmem_to_smem(taken, x_s.at[slot], barrier.at[slot])

            for first in range(stages):
                fetch(jnp.int32(first), first)

            @pl.loop(0, strips_each)
            def _(strip):
                def sums(*accumulators):
                    @pl.loop(0, steps)
                    def _(step):
                        turn = strip * steps + step
                        slot = lax.rem(turn, stages)
                        plgpu.barrier_wait(barrier.at[slot])
                        for part, accumulator in enumerate(accumulators):
                            weights = weights_of(tile_s.at[slot, pl.ds(part * LINES, LINES)], width)
                            plgpu.wgmma(accumulator, weights, x_s.at[slot].T)
                        plgpu.wgmma_wait(0)

                        @pl.when(turn + stages < turns)
                        def _():
                            fetch(turn + stages, slot)

                    return tuple(accumulator[...] for accumulator in accumulators)

                found = pl.run_scoped(sums, *(plgpu.ACC((ROWS, columns)) for _ in range(parts)))
                at = group * strips_each + strip
                for part, sum_ in enumerate([activated(*found)] if result == "activated" else found):
                    if result == "sums":
                        put(out_ref.at[part, split, block, :, pl.ds(at * ROWS, ROWS)], sum_, count)
                    else:
                        features = pl.ds((at * written + part) * ROWS, ROWS)
                        put(out_ref.at[block, :, features], sum_.astype(jnp.bfloat16), count)

    if result == "sums":
        out_type = jax.ShapeDtypeStruct((parts, splits, blocks, rows, strips * ROWS), jnp.float32)
    else:
        out_type = jax.ShapeDtypeStruct((blocks, rows, strips * written * ROWS), jnp.bfloat16)
    x_layout = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        kernel,
        out_type=out_type,
        scratch_types=[
            plgpu.SMEM((stages, lines, width), jnp.int32),
            plgpu.SMEM((stages, columns, width), jnp.bfloat16, transforms=x_layout),
            plgpu.Barrier(num_arrivals=2, num_barriers=stages),
        ],
        grid=(blocks, strips // strips_each, splits),
        grid_names=("block", "group", "split"),
        kernel_name="int4_experts",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(x, experts, *([] if counts is None else [counts]), tiles)
