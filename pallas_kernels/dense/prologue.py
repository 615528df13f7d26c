"""What a product's program does while its first weights are on their way: work out the norm of its token."""

import jax
import jax.numpy as jnp
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, memref, vector
from jax.extend.mlir.dialects import math as mlir_math

from pallas_kernels.dense.mosaic import CHANNELS
from pallas_kernels.dense.unnormed import Unnormed

THREADS = 128
"""Of a program."""

TOGETHER = CHANNELS // THREADS
"""Channels that a thread reads at once."""


def normalise(x_s, refs: tuple, squares_s, layout: tuple, eps: float, *, interpret: bool) -> None:
    """Write a token's norm into ``x_s`` [steps, 8, inputs] in shared memory, as the first of eight rows; what
    is in the others nobody reads.

    refs: parts [S, 1, M] float32, residual [1, M], weight [M]. squares_s: [4] float32 in shared memory.
    layout: transforms of ``x_s``. With ``interpret`` in plain JAX.
    """
    if interpret:
        parts, residual, weight = (ref[...] for ref in refs)
        wide = Unnormed(parts, residual, weight, eps).total()[0].astype(jnp.float32)
        factor = jax.lax.rsqrt(jnp.mean(wide * wide) + eps)
        token = weight * (wide * factor).astype(weight.dtype)
        for step in range(x_s.shape[0]):
            inputs = token[step * x_s.shape[2] :][: x_s.shape[2]]
            x_s[step] = jnp.broadcast_to(inputs, x_s.shape[1:])
        return

    steps, _, inputs = x_s.shape
    parts_ref, residual_ref, weight_ref = refs
    width = steps * inputs

    @plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(layout), *(plgpu.RefType() for _ in range(4))),
    )
    def write(_, x, parts, residual, weight, squares):
        i32, index = ir.IntegerType.get_signless(32), ir.IndexType.get()
        f32, bf16 = ir.F32Type.get(), ir.BF16Type.get()
        wide, narrow = (ir.VectorType.get((TOGETHER,), dtype) for dtype in (f32, bf16))

        def constant(value: int):
            return arith.constant(index, ir.IntegerAttr.get(index, value))

        def number(value: float):
            return arith.constant(f32, ir.FloatAttr.get(f32, value))

        thread = arith.remui(mgpu.thread_idx(), arith.constant(i32, ir.IntegerAttr.get(i32, THREADS)))
        first = arith.index_cast(
            index, arith.muli(thread, arith.constant(i32, ir.IntegerAttr.get(i32, TOGETHER)))
        )
        zero = constant(0)
        places = [arith.addi(first, constant(begin)) for begin in range(0, width, CHANNELS)]
        # All that is read is asked for at once.
        weights = [vector.load(narrow, weight, [place]) for place in places]
        totals, mine = [], vector.broadcast(wide, number(0.0))
        for place in places:
            product = vector.load(wide, parts, [zero, zero, place])
            for part in range(1, parts_ref.shape[0]):
                product = arith.addf(product, vector.load(wide, parts, [constant(part), zero, place]))
            before = vector.load(narrow, residual, [zero, place])
            total = arith.extf(wide, arith.addf(before, arith.truncf(narrow, product)))
            totals.append(total)
            mine = arith.addf(mine, arith.mulf(total, total))
        lanes = [
            vector.extract(mine, dynamic_position=[], static_position=[lane]) for lane in range(TOGETHER)
        ]
        sum_ = arith.addf(arith.addf(lanes[0], lanes[1]), arith.addf(lanes[2], lanes[3]))
        for distance in (16, 8, 4, 2, 1):
            sum_ = arith.addf(sum_, mgpu.utils.shfl_bfly(sum_, distance))
        warp = arith.divui(thread, arith.constant(i32, ir.IntegerAttr.get(i32, 32)))
        memref.store(sum_, squares, [arith.index_cast(index, warp)])
        mgpu.utils.warpgroup_barrier()
        sums = [memref.load(squares, [constant(each)]) for each in range(THREADS // 32)]
        sum_ = arith.addf(arith.addf(sums[0], sums[1]), arith.addf(sums[2], sums[3]))
        mean = arith.addf(arith.mulf(sum_, number(1 / width)), number(eps))
        factor = vector.broadcast(wide, mlir_math.rsqrt(mean))
        for place, total, factors in zip(places, totals, weights, strict=True):
            normed = arith.mulf(factors, arith.truncf(narrow, arith.mulf(total, factor)))
            # The first row of a tile of 8 x 64 is where its channels say: swizzling moves the others.
            tiles = inputs // 64
            tile, channel = arith.divui(place, constant(64)), arith.remui(place, constant(64))
            step, tile = arith.divui(tile, constant(tiles)), arith.remui(tile, constant(tiles))
            vector.store(normed, x, [step, zero, tile, zero, channel])

    write(x_s, parts_ref, residual_ref, weight_ref, squares_s)
    plgpu.commit_smem()
