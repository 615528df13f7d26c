"""Tree attention in one TPU kernel (Mosaic): all heads of a tile of keys a grid step, each key read once.

The steps of a row of the batch and a tile of query rows: the tiles of the committed keys, then those of the
block's keys under the packed mask, in one online softmax (base 2) whose state stays in VMEM scratch. Lengths
are prefetched scalars: a tile past the length is neither copied nor multiplied. Where two cores would share
one row and tile, the context is split between them: each leaves a part and its log-sum-exp.

XLA keeps a cache [B, S, J, channels] in the order of its axes where channels fill registers of 128 lanes (a
single head's as if J came before S), and otherwise with S innermost. Each is taken as it lies: another order
would cost a copy of the cache a call.
"""

from collections.abc import Callable
from functools import partial
from math import e, log2
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.results import result

LANES = 128

AS_NAMED, HEADS_FIRST, KEYS_LAST = (0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1)
"""Orders of the axes [B, S, J, channels]."""

COLUMNS = 128
"""Keys of the block a grid step, four words of the mask."""

TINY = 1e-30

HIDDEN = -1e30
"""Score of a key that is not seen: infinity less infinity would be no number."""


class Tiles(NamedTuple):
    """Query rows (of each key head) and committed keys a grid step, the splits of the context, and the VMEM
    that the kernel may take.
    """

    rows: int
    keys: int
    splits: int
    bytes: int


def attention_kernel(
    lengths_ref,
    q_ref,
    prefix_k_ref,
    prefix_v_ref,
    block_k_ref,
    block_v_ref,
    words_ref,
    out_ref,
    lse_ref,
    peak_ref,
    total_ref,
    sums_ref,
    *,
    slots: int,
    scale: float,
    steps: int,
    splits: int,
    order: tuple[int, ...],
) -> None:
    """One tile of query rows, one tile of keys.

    References: the lengths [B]; q and out [J, rows, channels]; keys and values [1, keys, J, channels] with
    their axes in this ``order``, values None where they are the keys' first channels; the mask's words
    [rows, 4]; the log-sum-exps [J, rows, 1] (base 2), None without splits; the softmax so far: peak and total
    [J, rows, 1], sums [J, rows, Vw], float32.
    """
    split, step = pl.program_id(0), pl.program_id(3)
    length = lengths_ref[pl.program_id(1)]
    heads, rows, width = sums_ref.shape
    key_axis = 1 if order == KEYS_LAST else 0
    channel_axis = 1 - key_axis

    @pl.when(step == 0)
    def _():
        peak_ref[...] = jnp.full(peak_ref.shape, HIDDEN, jnp.float32)
        total_ref[...] = jnp.zeros(total_ref.shape, jnp.float32)
        sums_ref[...] = jnp.zeros(sums_ref.shape, jnp.float32)

    def add(k_ref, v_ref, left: jax.Array, visible: jax.Array | None) -> None:
        """Some more keys, of which the first ``left`` are real, and ``visible`` [rows, keys] or all seen."""
        for j in range(heads):
            k = head_of(k_ref, j, order)
            v = (
                lax.slice_in_dim(k, 0, width, axis=channel_axis)
                if v_ref is None
                else head_of(v_ref, j, order)
            )
            # What no row sees counts as zero, as does what may not be a number: 0 * NaN is NaN.
            real = lax.broadcasted_iota(jnp.int32, v.shape, key_axis) < left
            v = jnp.where(real if visible is None else real & (v == v), v, jnp.zeros((), v.dtype))
            scores = product(q_ref[j], k, channel_axis)
            seen = lax.broadcasted_iota(jnp.int32, scores.shape, 1) < left if visible is None else visible
            scores = jnp.where(seen, scores * (scale * log2(e)), HIDDEN)
            peak = jnp.maximum(peak_ref[j], jnp.max(scores, axis=1, keepdims=True))
            weights = jnp.exp2(scores - peak)
            decay = jnp.exp2(peak_ref[j] - peak)
            peak_ref[j] = peak
            total_ref[j] = total_ref[j] * decay + jnp.sum(weights, axis=1, keepdims=True)
            sums_ref[j] = sums_ref[j] * decay + product(weights.astype(v.dtype), v, key_axis)

    keys, columns = (ref.shape[order.index(1)] for ref in (prefix_k_ref, block_k_ref))

    first, last = tiles_of(length, keys, split, splits)

    @pl.when((step < steps) & (first + step < last))
    def _():
        add(prefix_k_ref, prefix_v_ref, length - (first + step) * keys, None)

    @pl.when((step >= steps) & (split == splits - 1))
    def _():
        column = lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
        words = jnp.zeros((rows, columns), jnp.int32)
        for each in range(pl.cdiv(columns, 32)):
            words = jnp.where(column // 32 == each, words_ref[:, each : each + 1], words)
        visible = lax.shift_right_logical(words, column % 32) & 1 == 1
        add(block_k_ref, block_v_ref, slots - (step - steps) * columns, visible)

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        for j in range(heads):
            # The last split has the block; another may have seen nothing.
            total = total_ref[j] if lse_ref is None else jnp.maximum(total_ref[j], TINY)
            out_ref[j] = (sums_ref[j] / total).astype(out_ref.dtype)
            if lse_ref is not None:
                lse_ref[j] = peak_ref[j] + jnp.log2(total)


def tiles_of(length: jax.Array, keys: int, split: jax.Array, splits: int) -> tuple[jax.Array, jax.Array]:
    """The first tile of a split of the context, and the one after its last."""
    tiles = pl.cdiv(length, keys)
    share = pl.cdiv(tiles, splits)
    return split * share, jnp.minimum((split + 1) * share, tiles)


def head_of(ref, j: int, order: tuple[int, ...]) -> jax.Array:
    """A head's part of a tile: [keys, channels], or [channels, keys] where these are last."""
    if order != AS_NAMED:
        return ref[0, j]
    _, keys, heads, width = ref.shape
    packing = 4 // ref.dtype.itemsize
    if width != LANES or heads & (heads - 1) or heads % packing:
        return ref[0, :, j, :]
    # One load takes a head of eight keys, a stride apart, if elements have 32 bits. Two heads of bfloat16
    # share a word, and a bfloat16 is the upper half of a float32.
    words = ref if packing == 1 else ref.bitcast(jnp.int32)
    stride = heads // packing
    part = words.reshape(keys * stride, width)[pl.ds(j // packing, keys, stride=stride), :]
    if packing == 1:
        return part
    part = part << 16 if j % 2 == 0 else part & -(2**16)
    return lax.bitcast_convert_type(part, jnp.float32).astype(ref.dtype)


def product(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """The last axis of ``a`` with that axis of ``b``, summed in float32; float32 is not rounded."""
    return lax.dot_general(
        *(a, b, (((1,), (axis,)), ((), ()))),
        precision=lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


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
    value_width: int,
    tiles: Tiles,
    interpret: bool | pltpu.InterpretParams = False,
) -> jax.Array:
    """`tree_attention` without windows; with ``interpret`` anywhere.

    ``value_width`` is the values' width, latent or not. Raises what the compiler raises where tiles do not
    fit the chip.
    """
    B, N, H, Kw = q.shape
    S, J = prefix_k.shape[1:3]
    Vw, rows = value_width, N * H // J
    columns = min(N, COLUMNS)
    steps, block_steps = pl.cdiv(pl.cdiv(S, tiles.keys), tiles.splits), pl.cdiv(N, columns)
    queries = q.reshape(B, N, J, H // J, Kw).swapaxes(1, 2).reshape(B, J, rows, Kw)
    # A row a slot and head, four words a step: [B or 1, block steps, rows, 4].
    words = lax.bitcast_convert_type(mask, jnp.int32)
    words = jnp.pad(words, ((0, 0), (0, 0), (0, -words.shape[2] % 4)))
    words = jnp.repeat(words, H // J, axis=1).reshape(mask.shape[0], rows, -1, 4).swapaxes(1, 2)

    if Kw % LANES or Vw % LANES:
        order = KEYS_LAST
    else:
        order = AS_NAMED if J > 1 else HEADS_FIRST

    def committed(s, b, t, lengths):
        first, last = tiles_of(lengths[b], tiles.keys, s, tiles.splits)
        return jnp.maximum(jnp.minimum(first + t, last - 1), 0)

    def fresh(s, b, t, lengths):
        return jnp.maximum(t - steps, 0)

    def of_keys(size: int, width: int, tile: Callable) -> pl.BlockSpec:
        def place(s, b, r, t, lengths):
            axes = b, tile(s, b, t, lengths), 0, 0
            return tuple(axes[axis] for axis in order)

        sizes = 1, size, J, width
        return pl.BlockSpec(tuple(sizes[axis] for axis in order), place)

    def of_words(s, b, r, t, lengths):
        return b if mask.shape[0] > 1 else 0, fresh(s, b, t, lengths), r, 0

    def of_parts(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, J, tiles.rows, width), lambda s, b, r, t, lengths: (s, b, 0, r, 0))

    def shape(width: int, dtype) -> jax.ShapeDtypeStruct:
        return result(q, (tiles.splits, B, J, rows, width), dtype)

    latent = prefix_v is None
    keys = (
        None if each is None else each.transpose(order) for each in (prefix_k, prefix_v, block_k, block_v)
    )
    whole = tiles.splits == 1
    parts, lse = pl.pallas_call(
        partial(attention_kernel, slots=N, scale=scale, steps=steps, splits=tiles.splits, order=order),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(tiles.splits, B, pl.cdiv(rows, tiles.rows), steps + block_steps),
            in_specs=[
                pl.BlockSpec((None, J, tiles.rows, Kw), lambda s, b, r, t, lengths: (b, 0, r, 0)),
                of_keys(tiles.keys, Kw, committed),
                None if latent else of_keys(tiles.keys, Vw, committed),
                of_keys(columns, Kw, fresh),
                None if latent else of_keys(columns, Vw, fresh),
                pl.BlockSpec((None, None, tiles.rows, 4), of_words),
            ],
            out_specs=(of_parts(Vw), None if whole else of_parts(1)),
            scratch_shapes=[pltpu.VMEM((J, tiles.rows, width), jnp.float32) for width in (1, 1, Vw)],
        ),
        out_shape=(
            shape(Vw, q.dtype if whole else jnp.float32),
            None if whole else shape(1, jnp.float32),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=tiles.bytes,
        ),
        interpret=interpret,
        name="tree_attention",
    )(lengths, queries, *keys, words)
    if whole:
        out = parts[0]
    else:
        shares = jnp.exp2(lse - jnp.max(lse, axis=0))
        out = (jnp.sum(parts * shares, axis=0) / jnp.sum(shares, axis=0)).astype(q.dtype)
    return out.reshape(B, J, N, H // J, Vw).swapaxes(1, 2).reshape(B, N, H, Vw)
