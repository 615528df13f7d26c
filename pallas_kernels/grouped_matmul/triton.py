"""Routed experts on other GPUs than Hopper's (`triton_kernel`): INT4 as published, unpacked in registers."""

from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels import device
from pallas_kernels.grouped_matmul import as_published, grouping


def expert_mlp(
    x: jax.Array, expert_ids: jax.Array, expert_weights: jax.Array, experts, *, rounding: str
) -> jax.Array:
    """See `pallas_kernels.grouped_matmul.api.expert_mlp`.

    Raises NotImplementedError off an NVIDIA GPU of compute capability 8.0 and up, for weights that are not
    INT4 as published, for other dtypes than bfloat16, for more than a thousand tokens and for outputs that
    are no multiple of 16.
    """
    device.require_triton()
    as_published.require(experts)
    if x.dtype != jnp.bfloat16 or x.shape[0] > grouping.CROWD:
        raise NotImplementedError(f"{x.shape[0]} tokens of {x.dtype}")
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.grouped_matmul.triton_kernel import multiply

    product = partial(multiply, rounding=rounding)
    return as_published.blocked(x, expert_ids, expert_weights, experts, product)
