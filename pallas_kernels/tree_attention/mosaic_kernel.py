"""Attention to wide latents (MLA) on Hopper: one tile of keys serves as values too and is read once.

A program takes 64 query rows (slots x heads) and a split of the committed prefix, or the block of new slots.
Two warpgroups weigh half of a tile's keys each, share the weights through shared memory, and hold the sums of
half of the value channels each, which fill their registers. A third one copies tiles of 64 keys ahead. Splits
are merged by their log-sum-exp (`mosaic`).
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.tree_attention.mosaic import HIDDEN, KEYS, REST, ROWS, VALUES

PART = VALUES // 2
"""Value channels a warpgroup."""

HALF = KEYS // 2
"""Keys of a tile that a warpgroup weighs."""

STAGES = 2


@plgpu.inline_mgpu(
    arg_types=(plgpu.Layout.WGMMA, plgpu.Layout.WGMMA),
    return_type=plgpu.ShapeDtypeStruct((ROWS, KEYS), jnp.bfloat16, layout=plgpu.Layout.WGMMA),
)
def side_by_side(_, left, right):
    """Two arrays [64, 32] as one [64, 64], without moving a register."""
    registers = np.concatenate([left.registers, right.registers], axis=1)
    return mgpu.FragmentedArray(_registers=registers, _layout=mgpu.WGMMA_LAYOUT, _is_signed=None)


@functools.partial(jax.jit, static_argnames=("scale", "splits"))
def attend_split(
    q: jax.Array,
    prefix: jax.Array,
    block: jax.Array,
    bias: jax.Array,
    lengths: jax.Array,
    *,
    scale: float,
    splits: int,
) -> tuple[jax.Array, jax.Array]:
    """Attention of every query row to each split of the prefix, and to the block, apart.

    Args:
      q: bfloat16 [B, R, 512 + 64], R a multiple of 64.
      prefix: bfloat16 [B, S, 512 + 64], S a multiple of 64; row b sees the first lengths[b] slots.
      block: bfloat16 [B, C, 512 + 64], C a multiple of 64.
      bias: float32 [B or 1, R, C]: `HIDDEN` where a block's key is not seen, else 0.
      lengths: [B] int32.
      scale: multiplies the scores. splits: programs that share out a row's prefix.

    Returns:
      bfloat16 [B, splits + 1, R, 512] normalised outputs, the block's last, and their log-sum-exp, base 2,
      float32 [B, splits + 1, R]; zeros and -inf for a split that nothing of the prefix falls to.
    """
    B, R, _ = q.shape
    block_tiles = block.shape[1] // KEYS
    to_log2 = math.log2(math.e)

    def kernel(q_ref, prefix_ref, block_ref, bias_ref, length_ref, out_ref, lse_ref, *scratch):
        q_s, q_rest_s, k_s, k_rest_s, weights_s, row_s, *barriers = scratch
        q_bar, full, free, exchanged, weighed = barriers
        rows, split, batch = (lax.axis_index(name) for name in ("rows", "split", "batch"))
        group = lax.axis_index("group")
        own = pl.ds(rows * ROWS, ROWS)
        is_block = split == splits
        length = length_ref[batch]
        tiles = lax.div(length + (KEYS - 1), KEYS)
        each = lax.div(tiles + (splits - 1), splits)
        first = split * each
        prefix_count = jnp.where(is_block, 0, jnp.clip(tiles - first, 0, each))
        block_count = jnp.where(is_block, block_tiles, 0)

        @pl.when(group == 2)
        def _():
            plgpu.set_max_registers(40, action="decrease")
            for part in range(2):
                channels = pl.ds(part * PART, PART)
                plgpu.copy_gmem_to_smem(q_ref.at[batch, own, channels], q_s.at[part], q_bar)
            plgpu.copy_gmem_to_smem(q_ref.at[batch, own, pl.ds(VALUES, REST)], q_rest_s, q_bar)

            def fetch(source, tile, slot):
                keys = pl.ds(tile * KEYS, KEYS)
                for part in range(2):
                    channels = pl.ds(part * PART, PART)
                    plgpu.copy_gmem_to_smem(
                        source.at[batch, keys, channels], k_s.at[slot, part], full.at[slot]
                    )
                plgpu.copy_gmem_to_smem(
                    source.at[batch, keys, pl.ds(VALUES, REST)], k_rest_s.at[slot], full.at[slot]
                )

            for source, start, count in ((prefix_ref, first, prefix_count), (block_ref, 0, block_count)):

                @pl.loop(0, count)
                def _(turn, source=source, start=start):
                    slot = lax.rem(turn, STAGES)

                    @pl.when(turn >= STAGES)
                    def _():
                        plgpu.barrier_wait(free.at[slot])

                    fetch(source, start + turn, slot)

        @pl.when(group < 2)
        def _():
            plgpu.set_max_registers(232, action="increase")
            plgpu.barrier_wait(q_bar)
            half = pl.ds(pl.multiple_of(group * HALF, HALF), HALF)
            column = plgpu.broadcasted_iota(jnp.int32, (ROWS, HALF), 1, layout=plgpu.Layout.WGMMA)
            by_row = plgpu.Layout.WGMMA.reduce(1)

            def add_tile(turn, carry, in_block: bool):
                sums, peak, total = carry
                slot = lax.rem(turn, STAGES)
                plgpu.barrier_wait(full.at[slot])

                def products(accumulator):
                    for part in range(2):
                        plgpu.wgmma(accumulator, q_s.at[part], k_s.at[slot, part, half].T)
                    plgpu.wgmma(accumulator, q_rest_s, k_rest_s.at[slot, half].T)
                    return accumulator[...]

                scores = pl.run_scoped(products, plgpu.ACC((ROWS, HALF))) * (scale * to_log2)
                if in_block:
                    keys = pl.ds(turn * KEYS + group * HALF, HALF)
                    seen = bias_ref.at[batch if bias.shape[0] > 1 else 0, own, keys]
                    added = plgpu.load(seen, layout=plgpu.Layout.WGMMA, optimized=False)
                    scores = jnp.where(added < 0, HIDDEN, scores)
                else:
                    seen = column < length - (first + turn) * KEYS - group * HALF
                    scores = jnp.where(seen, scores, HIDDEN)
                # Both must scale by the same maximum, since each adds up the weights of both.
                highest = scores.max(axis=1)
                row_s[group] = highest
                plgpu.barrier_arrive(exchanged)
                plgpu.barrier_wait(exchanged)
                others = plgpu.load(row_s.at[1 - group], layout=by_row)
                higher = jnp.maximum(peak, jnp.maximum(highest, others))
                weights = jnp.exp2(scores - lax.broadcast_in_dim(higher, scores.shape, [0]))
                weights_s[group] = weights.astype(jnp.bfloat16)
                plgpu.barrier_arrive(weighed)
                shrink = jnp.exp2(peak - higher)
                total = total * shrink + weights.sum(axis=1)
                sums = sums * lax.broadcast_in_dim(shrink, sums.shape, [0])
                plgpu.barrier_wait(weighed)
                both = side_by_side(
                    *(plgpu.load(weights_s.at[part], layout=plgpu.Layout.WGMMA) for part in range(2))
                )

                def add(accumulator):
                    plgpu.wgmma(accumulator, both, k_s.at[slot, group])

                sums = pl.run_state(add)(plgpu.ACC.init(sums))
                plgpu.barrier_arrive(free.at[slot])
                return sums, higher, total

            carry = (
                plgpu.layout_cast(jnp.zeros((ROWS, PART), jnp.float32), plgpu.Layout.WGMMA),
                plgpu.layout_cast(jnp.full((ROWS,), HIDDEN, jnp.float32), by_row),
                plgpu.layout_cast(jnp.zeros((ROWS,), jnp.float32), by_row),
            )
            carry = lax.fori_loop(0, prefix_count, functools.partial(add_tile, in_block=False), carry)
            carry = lax.fori_loop(0, block_count, functools.partial(add_tile, in_block=True), carry)
            sums, peak, own_total = carry
            row_s[group] = own_total
            plgpu.barrier_arrive(exchanged)
            plgpu.barrier_wait(exchanged)
            total = own_total + plgpu.load(row_s.at[1 - group], layout=by_row)
            something = total > 0
            share = jnp.where(something, 1.0 / jnp.where(something, total, 1.0), 0.0)
            q_s[group] = (sums * lax.broadcast_in_dim(share, sums.shape, [0])).astype(jnp.bfloat16)
            in_log2 = peak + jnp.log(jnp.where(something, total, 1.0)) * to_log2
            lse = jnp.where(something, in_log2, -jnp.inf)

            @pl.when(group == 0)
            def _():
                row_s[2] = lse

            plgpu.commit_smem()
            channels = pl.ds(group * PART, PART)
            plgpu.copy_smem_to_gmem(q_s.at[group], out_ref.at[batch, split, own, channels])

            @pl.when(group == 0)
            def _():
                plgpu.copy_smem_to_gmem(row_s.at[2], lse_ref.at[batch, split, own])

            plgpu.wait_smem_to_gmem(0)

    tiled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    narrow = (plgpu.TilingTransform((8, HALF)), plgpu.SwizzleTransform(2 * HALF))
    return plgpu.kernel(
        kernel,
        out_type=(
            jax.ShapeDtypeStruct((B, splits + 1, R, VALUES), jnp.bfloat16),
            jax.ShapeDtypeStruct((B, splits + 1, R), jnp.float32),
        ),
        scratch_types=[
            plgpu.SMEM((2, ROWS, PART), jnp.bfloat16, transforms=tiled),
            plgpu.SMEM((ROWS, REST), jnp.bfloat16, transforms=tiled),
            plgpu.SMEM((STAGES, 2, KEYS, PART), jnp.bfloat16, transforms=tiled),
            plgpu.SMEM((STAGES, KEYS, REST), jnp.bfloat16, transforms=tiled),
            plgpu.SMEM((2, ROWS, HALF), jnp.bfloat16, transforms=narrow),
            # What warpgroups share of their rows, and the log-sum-exp: one array, since each takes 1 KB.
            plgpu.SMEM((3, ROWS), jnp.float32),
            plgpu.Barrier(num_arrivals=3),
            plgpu.Barrier(num_arrivals=3, num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=2, num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=2),
            plgpu.Barrier(num_arrivals=2),
        ],
        grid=(R // ROWS, splits + 1, B),
        grid_names=("rows", "split", "batch"),
        num_threads=3,
        thread_name="group",
        kernel_name="latent_attention",
        # Rows are summed inside of a warp, which takes no shared memory.
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
    )(q, prefix, block, bias, lengths)
