"""SwiGLU between the experts' two products in one GPU kernel: splits summed and activated, row by row."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.grouped_matmul.as_published import activated
from pallas_kernels.results import result
from pallas_kernels.triton import iota, load, store

MOST = 256
"""Features of a program."""


def activation_kernel(sums_ref, count_ref, out_ref, *, features: int) -> None:
    """Some features of one block. References: gate's and up's sums of every split [2, splits, R, F], how many
    rows are tokens (None: one); out [R, F].
    """
    parts, splits, _, width = sums_ref.shape
    split, feature = iota(pl.next_power_of_2(splits))[:, None], pl.program_id(1) * features + iota(features)
    inside = feature < width

    def activate_row(row, _):
        def summed(part: int) -> jax.Array:
            place = jnp.int32(part)[None, None], split, row[None, None], feature[None]
            return jnp.sum(load(sums_ref, *place, mask=(split < splits) & inside[None]), axis=0)

        value = activated([summed(part) for part in range(parts)])
        store(out_ref, value, row, feature, mask=inside)

    # The first row at once: to read how many there are takes its time, and few blocks have more than one.
    activate_row(jnp.int32(0), None)
    if count_ref is not None:
        lax.fori_loop(1, count_ref[...], activate_row, None)


def activate(
    sums: jax.Array, counts: jax.Array | None, dtype: jnp.dtype, *, interpret: bool = False
) -> jax.Array:
    """silu(gate) x up, with ``interpret`` anywhere.

    sums: float32 [2, splits, P, rows, features], gate's and up's. counts: [P] int32, how many of a block's
    rows are tokens (None: one in each); the others are left as they are. Returns [P, rows, features] in
    ``dtype``.
    """
    parts, splits, P, rows, width = sums.shape
    features = min(MOST, pl.next_power_of_2(width))
    return pl.pallas_call(
        partial(activation_kernel, features=features),
        grid=(P, pl.cdiv(width, features)),
        in_specs=[
            pl.BlockSpec((parts, splits, None, rows, width), lambda p, f: (0, 0, p, 0, 0)),
            None if counts is None else pl.BlockSpec((None,), lambda p, f: (p,)),
        ],
        out_specs=pl.BlockSpec((None, rows, width), lambda p, f: (p, 0, 0)),
        out_shape=result(sums, (P, rows, width), dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="activate_experts",
    )(sums, counts)
