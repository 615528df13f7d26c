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

FEWEST, MOST = 16, 128
"""Channels of a program: a sector of memory at least."""


def merge_kernel(part_ref, lse_ref, out_ref, *, channels: int) -> None:
    """One query row, ``channels`` value channels. References: the splits' outputs [splits, V] and
    log-sum-exps [splits]; out [V].
    """
    splits, width = part_ref.shape
    split = iota(pl.next_power_of_2(splits))
    held = split < splits
    lse = jnp.where(held, load(lse_ref, split, mask=held), -jnp.inf)
    weights = jnp.exp2(lse - jnp.max(lse))
    channel = pl.program_id(1) * channels + iota(channels)
    inside = channel < width
    parts = load(part_ref, split[:, None], channel[None], mask=held[:, None] & inside[None])
    merged = jnp.sum(parts.astype(jnp.float32) * weights[:, None], axis=0) / jnp.sum(weights)
    store(out_ref, merged, channel, mask=inside)


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
    return pl.pallas_call(
        partial(merge_kernel, channels=channels),
        grid=(rows, pl.cdiv(V, channels), B),
        in_specs=[
            pl.BlockSpec((None, splits, None, V), lambda r, c, b: (b, 0, r, 0)),
            pl.BlockSpec((None, splits, None), lambda r, c, b: (b, 0, r)),
        ],
        out_shape=result(parts, (B, rows, V), dtype),
        out_specs=pl.BlockSpec((None, None, V), lambda r, c, b: (b, r, 0)),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="tree_attention_merge",
    )(parts, lse)
