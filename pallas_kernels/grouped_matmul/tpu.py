"""Routed experts on TPUs (`tpu_kernel`): INT4 as published, unpacked in VMEM."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels import device, tuning
from pallas_kernels.grouped_matmul import as_published, grouping


@dataclass(frozen=True)
class Sizes:
    """``most_rows``: token rows of a block, 16 times a power of two. ``strip_bytes``: packed bytes of a strip
    of output features at most.
    """

    most_rows: int
    strip_bytes: int


def expert_mlp(
    x: jax.Array,
    expert_ids: jax.Array,
    expert_weights: jax.Array,
    experts,
    *,
    rounding: str,
    sizes: Sizes | None = None,
) -> jax.Array:
    """See `pallas_kernels.grouped_matmul.api.expert_mlp`. ``sizes``: the device's own (`tuning`) if None.

    Raises NotImplementedError where the program is not for a TPU, for weights that are not INT4 as published
    or do not fill registers, for other dtypes than bfloat16 and float32 and for more than a thousand tokens.
    """
    if not device.is_tpu():
        raise NotImplementedError("a kernel for TPUs")
    as_published.require(experts)
    if x.dtype not in (jnp.bfloat16, jnp.float32) or len(expert_ids) > grouping.CROWD:
        raise NotImplementedError(f"{len(expert_ids)} tokens of {x.dtype}")
    # Imported late: it takes a while, and elsewhere nothing needs it.
    from jax.experimental.pallas import tpu as pltpu

    from pallas_kernels.grouped_matmul.tpu_kernel import LANES, multiply

    for each in experts:
        out, words = each.packed.shape[1:]
        if out % LANES or (words % LANES and words % 8):
            raise NotImplementedError(f"{8 * words} inputs and {out} outputs do not fill registers")
    limit = pltpu.get_tpu_info().vmem_capacity_bytes * 3 // 4
    sizes = sizes or tuning.sizes("grouped_matmul", "mosaic_tpu", Sizes)
    product = partial(multiply, rounding=rounding, limit=limit, strip_bytes=sizes.strip_bytes)
    return as_published.blocked(x, expert_ids, expert_weights, experts, product, sizes.most_rows)
