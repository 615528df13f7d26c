"""Tree attention in one GPU kernel: Pallas through Triton, for compute capability 8.0 and up.

A program takes a tile of query rows (slots x the heads that share a key head) and walks the committed keys of
its row of the batch, up to the row's length, then the block's keys under the packed mask, in one online
softmax (base 2): there is nothing left to merge. Where that would leave most of the chip idle the context is
cut into splits; each leaves a normalised part and its log-sum-exp, and a second kernel weighs them.

Widths need not be powers of two: channels are cut into parts that are (80 = 64 + 16), one product each.
"""

from functools import partial, reduce
from math import e, log2
from operator import add

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.parts import Part
from pallas_kernels.results import result
from pallas_kernels.tree_attention.merge_kernel import merge
from pallas_kernels.tree_attention.tiles import COLUMNS, Tiles, channel_parts
from pallas_kernels.triton import iota, load, product, store


def load_rows(ref, row: jax.Array, held: jax.Array, part: Part) -> jax.Array:
    """[rows, part.padded] of a [S, channels] reference; zeros where ``held`` [rows] is false."""
    channel = iota(part.padded)
    mask = held[:, None]
    if part.padded != part.width:
        mask = mask & (channel < part.width)[None]
    return load(ref, row[:, None], (part.start + channel)[None], mask=mask)


def attention_kernel(
    q_ref,
    prefix_k_ref,
    prefix_v_ref,
    block_k_ref,
    block_v_ref,
    length_ref,
    mask_ref,
    lower_ref,
    out_ref,
    lse_ref=None,
    *,
    slots: int,
    group: int,
    scale: float,
    tiles: Tiles,
    key_parts: tuple[Part, ...],
    value_parts: tuple[Part, ...],
) -> None:
    """One tile of query rows, one split. Row r is slot r // group and head r % group of the key head.

    References of one row of the batch and one key head: queries and outputs [N, group, channels], keys and
    values [S or N, channels] (None for latent values), the length, the mask [N, W], the lower bounds [N] or
    None, and the log-sum-exps [N, group] where there are several splits.
    """
    row = pl.program_id(0) * tiles.rows + iota(tiles.rows)
    split = pl.program_id(1)
    slot, head = lax.div(row, jnp.int32(group)), lax.rem(row, jnp.int32(group))
    real = row < slots * group

    def places(part: Part) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """The tile's indices of a [N, heads of a key head, channels] reference, and its mask."""
        channel = iota(part.padded)
        indices = slot[:, None], head[:, None], (part.start + channel)[None]
        return indices, real[:, None] & (channel < part.width)[None]

    def queries(part: Part) -> jax.Array:
        indices, mask = places(part)
        return load(q_ref, *indices, mask=mask)

    q = [queries(part) for part in key_parts]
    length = length_ref[...]
    lower = None
    if lower_ref is not None:
        lower = jnp.where(real, load(lower_ref, slot, mask=real), 2**31 - 1)

    def step(state, keys, values, visible):
        """The softmax so far (peak [rows], total [rows], sums a value part) with some more keys."""
        peak, total, sums = state
        scores = reduce(add, (product(*pair, True) for pair in zip(q, keys, strict=True)))
        scores = jnp.where(visible, scores * (scale * log2(e)), -jnp.inf)
        higher = jnp.maximum(peak, jnp.max(scores, axis=1))
        # Nothing seen yet: the difference of two infinities would not be a number.
        base = jnp.where(higher == -jnp.inf, 0.0, higher)
        weights = jnp.exp2(scores - base[:, None])
        decay = jnp.exp2(peak - base)
        total = total * decay + jnp.sum(weights, axis=1)
        weights = weights.astype(values[0].dtype)
        sums = tuple(
            old * decay[:, None] + product(weights, new, False) for old, new in zip(sums, values, strict=True)
        )
        return higher, total, sums

    def committed(index, state):
        position = index * tiles.keys + iota(tiles.keys)
        held = position < length
        keys = [load_rows(prefix_k_ref, position, held, part) for part in key_parts]
        if prefix_v_ref is None:
            values = keys[: len(value_parts)]
        else:
            values = [load_rows(prefix_v_ref, position, held, part) for part in value_parts]
        visible = jnp.broadcast_to(held[None], (tiles.rows, tiles.keys))
        if lower is not None:
            visible = visible & (position[None] >= lower[:, None])
        return step(state, keys, values, visible)

    def fresh(index, state):
        column = index * COLUMNS + iota(COLUMNS)
        held = column < slots
        keys = [load_rows(block_k_ref, column, held, part) for part in key_parts]
        if block_v_ref is None:
            values = keys[: len(value_parts)]
        else:
            values = [load_rows(block_v_ref, column, held, part) for part in value_parts]
        # 0 * NaN is NaN: a slot that has gone wrong would reach those that do not see it.
        values = [jnp.where(value != value, jnp.zeros((), value.dtype), value) for value in values]
        words = load(mask_ref, slot, jnp.broadcast_to(index, slot.shape), mask=real)
        bits = lax.shift_right_logical(
            jnp.broadcast_to(words[:, None], (tiles.rows, COLUMNS)),
            jnp.broadcast_to(lax.iota(jnp.uint32, COLUMNS)[None], (tiles.rows, COLUMNS)),
        )
        return step(state, keys, values, (bits & jnp.uint32(1)) != jnp.uint32(0))

    first, last = jnp.int32(0), pl.cdiv(length, tiles.keys)
    if lower is not None:
        first = lax.div(jnp.maximum(jnp.min(lower), 0), jnp.int32(tiles.keys))
        first = jnp.minimum(first, last)
    if tiles.splits > 1:
        share = pl.cdiv(last - first, tiles.splits)
        first = jnp.minimum(first + split * share, last)
        last = jnp.minimum(first + share, last)
    state = (
        jnp.full((tiles.rows,), -jnp.inf, jnp.float32),
        jnp.zeros((tiles.rows,), jnp.float32),
        tuple(jnp.zeros((tiles.rows, part.padded), jnp.float32) for part in value_parts),
    )
    state = lax.fori_loop(first, last, committed, state)
    # Not unrolled: the block may be a prompt. The last split has the fewest keys, so it takes the block.
    steps = (split == tiles.splits - 1).astype(jnp.int32) * pl.cdiv(slots, COLUMNS)
    state = lax.fori_loop(0, steps, fresh, state)
    peak, total, sums = state
    nothing = total == 0
    share = 1.0 / jnp.where(nothing, 1.0, total)
    for part, value in zip(value_parts, sums, strict=True):
        indices, mask = places(part)
        store(out_ref, value * share[:, None], *indices, mask=mask)
    if lse_ref is not None:
        lse = jnp.where(nothing, -jnp.inf, peak + jnp.log2(jnp.where(nothing, 1.0, total)))
        store(lse_ref, lse, slot, head, mask=real)


def attend(
    q: jax.Array,
    prefix_k: jax.Array,
    prefix_v: jax.Array | None,
    block_k: jax.Array,
    block_v: jax.Array | None,
    lengths: jax.Array,
    mask: jax.Array,
    *,
    scale: float,
    lower: jax.Array | None,
    value_width: int,
    tiles: Tiles,
    interpret: bool = False,
) -> jax.Array:
    """`tree_attention` with the work cut as ``tiles`` says; with ``interpret`` anywhere.

    ``value_width`` is the values' width, latent or not. Raises what the compiler raises where tiles do not
    fit the chip.
    """
    B, N, H, Kw = q.shape
    S, J = prefix_k.shape[1:3]
    group = H // J
    latent = prefix_v is None
    Vw = value_width
    key_parts, value_parts = channel_parts(Kw, Vw, latent)

    def of_row_and_head(slots: int, width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, slots, None, width), lambda m, s, p: (p // J, 0, p % J, 0))

    def grouped(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, N, None, group, width), lambda m, s, p: (p // J, 0, p % J, 0, 0))

    inputs = (q.reshape(B, N, J, group, Kw), prefix_k, prefix_v, block_k, block_v, lengths, mask, lower)
    specs = (
        grouped(Kw),
        of_row_and_head(S, Kw),
        None if latent else of_row_and_head(S, Vw),
        of_row_and_head(N, Kw),
        None if latent else of_row_and_head(N, Vw),
        pl.BlockSpec((None,), lambda m, s, p: (p // J,)),
        pl.BlockSpec((None, N, mask.shape[2]), lambda m, s, p: (0 if mask.shape[0] == 1 else p // J, 0, 0)),
        None if lower is None else pl.BlockSpec((None, N), lambda m, s, p: (p // J, 0)),
    )
    kernel = partial(
        attention_kernel,
        slots=N,
        group=group,
        scale=scale,
        tiles=tiles,
        key_parts=key_parts,
        value_parts=value_parts,
    )
    call = partial(
        pl.pallas_call,
        kernel,
        grid=(pl.cdiv(N * group, tiles.rows), tiles.splits, B * J),
        in_specs=specs,
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpret,
        name="tree_attention",
    )

    def shape(*sizes: int, dtype) -> jax.ShapeDtypeStruct:
        return result(q, sizes, dtype)

    whole = shape(B, N, J, group, Vw, dtype=q.dtype)
    if tiles.splits == 1:
        return call(out_shape=whole, out_specs=grouped(Vw))(*inputs).reshape(B, N, H, Vw)
    splits = tiles.splits
    part, lse = call(
        out_shape=(
            shape(B, splits, N, J, group, Vw, dtype=jnp.float32),
            shape(B, splits, N, J, group, dtype=jnp.float32),
        ),
        out_specs=(
            pl.BlockSpec((None, None, N, None, group, Vw), lambda m, s, p: (p // J, s, 0, p % J, 0, 0)),
            pl.BlockSpec((None, None, N, None, group), lambda m, s, p: (p // J, s, 0, p % J, 0)),
        ),
    )(*inputs)
    parts, lses = part.reshape(B, splits, N * H, Vw), lse.reshape(B, splits, N * H)
    return merge(parts, lses, N * H, q.dtype, interpret=interpret).reshape(B, N, H, Vw)
