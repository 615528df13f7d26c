"""SwiGLU between the experts' two products in one GPU kernel: splits summed, activated and turned."""

from functools import reduce
from operator import add

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.grouped_matmul.as_published import activated

FEATURES = 32
"""Of a program: few, since all that it does is wait for its reads."""


def activation_kernel(sums_ref, out_ref) -> None:
    """Some features of one block. References: gate's and up's sums of every split [2, splits, features, R];
    out [R, features].
    """
    parts, splits = sums_ref.shape[:2]
    sums = [reduce(add, (sums_ref[part, split] for split in range(splits))) for part in range(parts)]
    out_ref[...] = activated(sums).astype(out_ref.dtype).T


def activate(sums: jax.Array, dtype: jnp.dtype, *, interpret: bool = False) -> jax.Array:
    """silu(gate) x up, with ``interpret`` anywhere.

    sums: float32 [2, splits, P, features, rows], gate's and up's; rows 8 times a power of two. Returns
    [P, rows, features] in ``dtype``.
    """
    parts, splits, P, features, rows = sums.shape
    return pl.pallas_call(
        activation_kernel,
        grid=(P, features // FEATURES),
        in_specs=[pl.BlockSpec((parts, splits, None, FEATURES, rows), lambda p, f: (0, 0, p, f, 0))],
        out_specs=pl.BlockSpec((None, rows, FEATURES), lambda p, f: (p, 0, f)),
        out_shape=jax.ShapeDtypeStruct(
            (P, rows, features), dtype, manual_axis_type=jax.typeof(sums).manual_axis_type
        ),
        compiler_params=plgpu.CompilerParams(num_warps=rows // 8, num_stages=1),
        interpret=interpret,
        name="activate_experts",
    )(sums)
