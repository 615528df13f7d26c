"""The parts of a product summed, added to the residual stream and normalised, in one GPU kernel."""

from functools import partial, reduce
from operator import add

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.results import result
from pallas_kernels.triton import iota, load, store

WARPS = 32
"""As many as a program can have: there are few programs, and each must wait for all of its row."""


def sum_kernel(part_ref, residual_ref, weight_ref, total_ref, normed_ref, *, eps: float) -> None:
    """One token. References: its parts [S, M], residual, norm's weight and both results [M]."""
    parts, width = part_ref.shape
    channel = iota(pl.next_power_of_2(width))
    held = channel < width
    each = (load(part_ref, jnp.full_like(channel, part), channel, mask=held) for part in range(parts))
    product = reduce(add, each)
    dtype = residual_ref.dtype
    total = load(residual_ref, channel, mask=held) + product.astype(dtype)
    store(total_ref, total, channel, mask=held)
    wide = total.astype(jnp.float32)
    factor = jax.lax.rsqrt(jnp.sum(wide * wide) * (1 / width) + eps)
    normed = load(weight_ref, channel, mask=held) * (wide * factor).astype(dtype)
    store(normed_ref, normed, channel, mask=held)


def add_parts(
    parts: jax.Array, residual: jax.Array, weight: jax.Array, eps: float, *, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    """residual + the sum over S of ``parts``, and its norm.

    Args:
      parts: [S, T, M] float32.
      residual: [T, M].
      weight: the norm's, [M], in residual's dtype.
      eps: added to the mean of squares.
      interpret: run anywhere.

    Returns:
      Both [T, M] in residual's dtype.
    """
    S, T, M = parts.shape
    row = pl.BlockSpec((None, M), lambda t: (t, 0))
    shape = result(residual, (T, M), residual.dtype)
    return pl.pallas_call(
        partial(sum_kernel, eps=eps),
        grid=(T,),
        in_specs=(pl.BlockSpec((S, None, M), lambda t: (0, t, 0)), row, pl.BlockSpec((M,), lambda t: (0,))),
        out_specs=(row, row),
        out_shape=(shape, shape),
        compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="dense_sum",
    )(parts, residual, weight)
