"""Routed experts on other GPUs than Hopper's (`triton_kernel`): INT4 as published, unpacked in registers."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels import device, tuning
from pallas_kernels.grouped_matmul import as_published, grouping


@dataclass(frozen=True)
class Sizes:
    """``most_rows``: token rows of a block. ``strip``: output features a program, narrower where that makes
    fewer than ``programs``. ``words``: a step's words of each; ``stages``: steps in flight; both less where
    the shared memory is too small. ``warps`` a program, ``warps_of_many`` from 64 rows on. All but
    ``programs`` and ``stages`` are powers of two, rows, strip and words of 16 and more.
    """

    most_rows: int
    strip: int
    programs: int
    words: int
    stages: int
    warps: int
    warps_of_many: int


def expert_mlp(
    x: jax.Array,
    expert_ids: jax.Array,
    expert_weights: jax.Array,
    experts,
    *,
    rounding: str,
    sizes: Sizes | None = None,
    interpret: bool = False,
) -> jax.Array:
    """See `pallas_kernels.grouped_matmul.api.expert_mlp`. ``sizes``: the device's own (`tuning`) if None;
    with ``interpret`` anywhere.

    Raises NotImplementedError off an NVIDIA GPU of compute capability 8.0 and up, for weights that are not
    INT4 as published, for other dtypes than bfloat16, for more than a thousand tokens and for outputs that
    are no multiple of 16.
    """
    if not interpret:
        device.require_triton()
    as_published.require(experts)
    if x.dtype != jnp.bfloat16 or len(expert_ids) > grouping.CROWD:
        raise NotImplementedError(f"{len(expert_ids)} tokens of {x.dtype}")
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.grouped_matmul.triton_kernel import multiply

    sizes = sizes or tuning.sizes("grouped_matmul", "triton", Sizes)
    product = partial(multiply, rounding=rounding, sizes=sizes, interpret=interpret)
    return as_published.blocked(x, expert_ids, expert_weights, experts, product, sizes.most_rows)
