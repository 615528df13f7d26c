"""What Mosaic kernels for Hopper share: tokens that are fewer than a product's columns, read and written."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, memref, vector


def token_rows(rows: int, columns: int, program: jax.Array) -> pl.Slice:
    """The first ``columns`` rows, a multiple of 8, of an array that may have but ``rows``: a copy past the
    last brings zeros. ``program``: an index of the program, not below 0.
    """
    # JAX 0.12 refuses what it sees to reach past the end; a zero that is worked out it does not see.
    begin = 0 if columns == rows else pl.multiple_of(jnp.minimum(program, 0), 8)
    return pl.ds(begin, columns)


def put(ref, sums, count) -> None:
    """Write the first ``count`` columns of ``sums`` [64, columns] as the rows of ``ref`` [columns, 64] in
    global memory.
    """

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.Layout.WGMMA, plgpu.Layout.WGMMA))
    def store(_, ref, sums, count):
        i32, index = ir.IntegerType.get_signless(32), ir.IndexType.get()

        def constant(value: int):
            return arith.constant(i32, ir.IntegerAttr.get(i32, value))

        def at(value):
            return arith.index_cast(index, value)

        thread = arith.remui(mgpu.thread_idx(), constant(128))
        warp, lane = arith.shrui(thread, constant(5)), arith.andi(thread, constant(31))
        row = arith.addi(arith.muli(warp, constant(16)), arith.shrui(lane, constant(2)))
        pair = arith.muli(arith.andi(lane, constant(3)), constant(2))
        for tile in range(sums.shape[1] // 8):
            for e in range(2):
                column = arith.addi(pair, constant(8 * tile + e))
                with mgpu.utils.when(arith.cmpi(arith.CmpIPredicate.slt, column, count.registers.item())):
                    for h in range(2):
                        both = sums.registers[0, tile, 0, 0, h, 0, 0, 0, 0]
                        value = vector.extract(both, dynamic_position=[], static_position=[e])
                        place = [at(column), at(arith.addi(row, constant(8 * h)))]
                        memref.store(value, ref, place)

    store(ref, sums, count)
