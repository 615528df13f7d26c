"""Tree attention in one TPU kernel (Mosaic): all heads of a tile of keys a grid step, each key read once.

The steps of a row of the batch and a tile of query rows: the tiles of the committed keys, then those of the
block's keys under the packed mask, in one online softmax (base 2) whose state stays in VMEM scratch. Lengths
are prefetched scalars: a tile past the length is neither copied nor multiplied.

XLA keeps a cache [B, S, J, channels] in the order of its axes where channels fill registers of 128 lanes, and
otherwise with S innermost. Either order is taken as it lies: another would cost a copy of the cache a call.
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

LANES = 128

COLUMNS = 128
"""Keys of the block a grid step, four words of the mask."""

HIDDEN = -1e30
"""Score of a key that is not seen: infinity less infinity would be no number."""


class Tiles(NamedTuple):
    """Query rows (of each key head) and committed keys a grid step, and the VMEM that the kernel may take."""

    rows: int
    keys: int
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
    peak_ref,
    total_ref,
    sums_ref,
    *,
    slots: int,
    scale: float,
    steps: int,
    key_axis: int,
) -> None:
    """One tile of query rows, one tile of keys.

    References: the lengths [B]; q and out [J, rows, channels]; keys and values [keys, J, channels], with
    ``key_axis`` (that of a head's part) 1 [J, channels, keys]; values None where they are the keys' first
    channels; the mask's words [rows, 4]; the softmax so far: peak and total [J, rows, 1], sums [J, rows, Vw],
    float32.
    """
    step = pl.program_id(2)
    length = lengths_ref[pl.program_id(0)]
    heads, rows, width = sums_ref.shape
    channel_axis = 1 - key_axis

    @pl.when(step == 0)
    def _():
        peak_ref[...] = jnp.full(peak_ref.shape, HIDDEN, jnp.float32)
        total_ref[...] = jnp.zeros(total_ref.shape, jnp.float32)
        sums_ref[...] = jnp.zeros(sums_ref.shape, jnp.float32)

    def head(ref, j: int) -> jax.Array:
        return ref[:, j, :] if key_axis == 0 else ref[j]

    def add(k_ref, v_ref, left: jax.Array, visible: jax.Array | None) -> None:
        """Some more keys, of which the first ``left`` are real, and ``visible`` [rows, keys] or all seen."""
        for j in range(heads):
            k = head(k_ref, j)
            v = lax.slice_in_dim(k, 0, width, axis=channel_axis) if v_ref is None else head(v_ref, j)
            # What is not seen counts as zero: 0 * NaN is NaN.
            real = lax.broadcasted_iota(jnp.int32, v.shape, key_axis) < left
            v = jnp.where(real & (v == v), v, jnp.zeros((), v.dtype))
            scores = product(q_ref[j], k, channel_axis)
            seen = lax.broadcasted_iota(jnp.int32, scores.shape, 1) < left if visible is None else visible
            scores = jnp.where(seen, scores * (scale * log2(e)), HIDDEN)
            peak = jnp.maximum(peak_ref[j], jnp.max(scores, axis=1, keepdims=True))
            weights = jnp.exp2(scores - peak)
            decay = jnp.exp2(peak_ref[j] - peak)
            peak_ref[j] = peak
            total_ref[j] = total_ref[j] * decay + jnp.sum(weights, axis=1, keepdims=True)
            sums_ref[j] = sums_ref[j] * decay + product(weights.astype(v.dtype), v, key_axis)

    keys, columns = (ref.shape[0 if key_axis == 0 else 2] for ref in (prefix_k_ref, block_k_ref))

    @pl.when(step * keys < jnp.where(step < steps, length, 0))
    def _():
        add(prefix_k_ref, prefix_v_ref, length - step * keys, None)

    @pl.when(step >= steps)
    def _():
        column = lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
        words = jnp.zeros((rows, columns), jnp.int32)
        for each in range(pl.cdiv(columns, 32)):
            words = jnp.where(column // 32 == each, words_ref[:, each : each + 1], words)
        visible = lax.shift_right_logical(words, column % 32) & 1 == 1
        add(block_k_ref, block_v_ref, slots - (step - steps) * columns, visible)

    @pl.when(step == pl.num_programs(2) - 1)
    def _():
        for j in range(heads):
            out_ref[j] = (sums_ref[j] / total_ref[j]).astype(out_ref.dtype)


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
    steps, block_steps = pl.cdiv(S, tiles.keys), pl.cdiv(N, columns)
    queries = q.reshape(B, N, J, H // J, Kw).swapaxes(1, 2).reshape(B, J, rows, Kw)
    # A row a slot and head, four words a step: [B or 1, block steps, rows, 4].
    words = lax.bitcast_convert_type(mask, jnp.int32)
    words = jnp.pad(words, ((0, 0), (0, 0), (0, -words.shape[2] % 4)))
    words = jnp.repeat(words, H // J, axis=1).reshape(mask.shape[0], rows, -1, 4).swapaxes(1, 2)

    key_axis = 0 if all(width % LANES == 0 for width in (Kw, Vw)) else 1

    def ordered(keys: jax.Array | None) -> jax.Array | None:
        return keys if keys is None or key_axis == 0 else keys.transpose(0, 2, 3, 1)

    def committed(b, t, lengths):
        return b, jnp.minimum(t, jnp.maximum(pl.cdiv(lengths[b], tiles.keys) - 1, 0))

    def fresh(b, t, lengths):
        return b, jnp.maximum(t - steps, 0)

    def of_keys(size: int, width: int, tile: Callable) -> pl.BlockSpec:
        def place(b, r, t, lengths):
            b, t = tile(b, t, lengths)
            return (b, t, 0, 0) if key_axis == 0 else (b, 0, 0, t)

        return pl.BlockSpec((None, size, J, width) if key_axis == 0 else (None, J, width, size), place)

    def of_rows(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, J, tiles.rows, width), lambda b, r, t, lengths: (b, 0, r, 0))

    latent = prefix_v is None
    out = pl.pallas_call(
        partial(attention_kernel, slots=N, scale=scale, steps=steps, key_axis=key_axis),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(B, pl.cdiv(rows, tiles.rows), steps + block_steps),
            in_specs=[
                of_rows(Kw),
                of_keys(tiles.keys, Kw, committed),
                None if latent else of_keys(tiles.keys, Vw, committed),
                of_keys(columns, Kw, fresh),
                None if latent else of_keys(columns, Vw, fresh),
                pl.BlockSpec(
                    (None, None, tiles.rows, 4),
                    lambda b, r, t, lengths: (
                        b if mask.shape[0] > 1 else 0,
                        jnp.maximum(t - steps, 0),
                        r,
                        0,
                    ),
                ),
            ],
            out_specs=of_rows(Vw),
            scratch_shapes=[
                pltpu.VMEM((J, tiles.rows, 1), jnp.float32),
                pltpu.VMEM((J, tiles.rows, 1), jnp.float32),
                pltpu.VMEM((J, tiles.rows, Vw), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(
            (B, J, rows, Vw), q.dtype, manual_axis_type=jax.typeof(q).manual_axis_type
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=tiles.bytes
        ),
        interpret=interpret,
        name="tree_attention",
    )(lengths, queries, *(ordered(keys) for keys in (prefix_k, prefix_v, block_k, block_v)), words)
    return out.reshape(B, J, N, H // J, Vw).swapaxes(1, 2).reshape(B, N, H, Vw)
