"""The parts of a context that was split, weighed by their log-sum-exps, in one GPU kernel."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.results import result
from pallas_kernels.triton import iota, load, store

ELEMENTS = 4096
"""Numbers of a program, which registers hold."""

PROGRAMS = 128
"""Fewer leave multiprocessors idle."""

FEWEST, MOST = 16, 128
"""Channels of a program: a sector of memory at least."""


def merge_kernel(part_ref, lse_ref, out_ref, *, rows: int, channels: int) -> None:
    """``rows`` query rows, ``channels`` value channels. References: the splits' outputs [splits, R, V] and
    log-sum-exps [splits, R]; out [R or fewer, V].
    """
    splits, _, width = part_ref.shape
    split, row = iota(pl.next_power_of_2(splits)), pl.program_id(0) * rows + iota(rows)
    real = row < out_ref.shape[0]
    held = (split < splits)[:, None] & real[None]
    lse = jnp.where(held, load(lse_ref, split[:, None], row[None], mask=held), -jnp.inf)
    weights = jnp.where(held, jnp.exp2(lse - jnp.max(lse, axis=0)[None]), 0.0)
    channel = pl.program_id(1) * channels + iota(channels)
    inside = channel < width
    places = split[:, None, None], row[None, :, None], channel[None, None]
    parts = load(part_ref, *places, mask=held[..., None] & inside[None, None])
    merged = jnp.sum(parts.astype(jnp.float32) * weights[..., None], axis=0)
    merged = merged / jnp.sum(weights, axis=0)[:, None]
    store(out_ref, merged, row[:, None], channel[None], mask=real[:, None] & inside[None])


def merge(
    parts: jax.Array, lse: jax.Array, rows: int, dtype: jnp.dtype, *, interpret: bool = False
) -> jax.Array:
    """The first ``rows`` query rows merged; with ``interpret`` anywhere.

    Args:
      parts: [B, splits, rows or more, V] normalised outputs.
      lse: [B, splits, rows or more] float32, base 2; -inf where a split saw nothing.

    Returns:
      [B, rows, V] in ``dtype``.
    """
    B, splits, _, V = parts.shape
    channels = min(MOST, max(FEWEST, ELEMENTS // pl.next_power_of_2(splits)), pl.next_power_of_2(V))
    # Several rows a program, where there are so many that each would have little to do.
    share, each = ELEMENTS // (pl.next_power_of_2(splits) * channels), 1
    while 2 * each <= share and B * rows * pl.cdiv(V, channels) >= 2 * each * PROGRAMS:
        each *= 2
    return pl.pallas_call(
        partial(merge_kernel, rows=each, channels=channels),
        grid=(pl.cdiv(rows, each), pl.cdiv(V, channels), B),
        in_specs=[
            pl.BlockSpec((None, *parts.shape[1:]), lambda r, c, b: (b, 0, 0, 0)),
            pl.BlockSpec((None, *lse.shape[1:]), lambda r, c, b: (b, 0, 0)),
        ],
        out_shape=result(parts, (B, rows, V), dtype),
        out_specs=pl.BlockSpec((None, rows, V), lambda r, c, b: (b, 0, 0)),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="tree_attention_merge",
    )(parts, lse)
