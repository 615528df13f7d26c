"""SwiGLU between the experts' two products in one GPU kernel: splits summed, activated and turned."""

from functools import reduce
from operator import add

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.grouped_matmul.as_published import activated
from pallas_kernels.grouped_matmul.tiles import ROWS


def activation_kernel(expert_ref, sums_ref, out_ref) -> None:
    """64 features of one block. References: the block's expert; gate's and up's sums of every split
    [2, splits, 64, R]; out [R, 64].
    """
    parts, splits = sums_ref.shape[:2]

    @pl.when(expert_ref[...] >= 0)
    def _():
        sums = [reduce(add, (sums_ref[part, split] for split in range(splits))) for part in range(parts)]
        out_ref[...] = activated(sums).astype(out_ref.dtype).T


def activate(sums: jax.Array, experts: jax.Array, dtype: jnp.dtype, *, interpret: bool = False) -> jax.Array:
    """silu(gate) x up of every block that has an expert; with ``interpret`` anywhere.

    Args:
      sums: float32 [2, splits, P, features, rows]: gate's and up's; features a multiple of 64.
      experts: [P] int32, -1 for blocks that nobody reads.

    Returns:
      [P, rows, features] in ``dtype``, anything where an expert is -1.
    """
    parts, splits, P, features, rows = sums.shape
    return pl.pallas_call(
        activation_kernel,
        grid=(P, features // ROWS),
        in_specs=[
            pl.BlockSpec((None,), lambda p, f: (p,)),
            pl.BlockSpec((parts, splits, None, ROWS, rows), lambda p, f: (0, 0, p, f, 0)),
        ],
        out_specs=pl.BlockSpec((None, rows, ROWS), lambda p, f: (p, 0, f)),
        out_shape=jax.ShapeDtypeStruct(
            (P, rows, features), dtype, manual_axis_type=jax.typeof(sums).manual_axis_type
        ),
        compiler_params=plgpu.CompilerParams(num_warps=2 if rows <= 16 else 4, num_stages=1),
        interpret=interpret,
        name="activate_experts",
    )(experts, sums)
