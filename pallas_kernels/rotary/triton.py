"""Norms and rotary positions on GPUs (`triton_kernel`): one kernel for two or three an array."""

import jax

from pallas_kernels import device


def rotate(
    heads: tuple[jax.Array, ...],
    values: jax.Array,
    weights: tuple[jax.Array | None, ...],
    cos: jax.Array,
    sin: jax.Array,
    *,
    eps: float,
    interpret: bool = False,
) -> tuple[jax.Array, ...]:
    """See `pallas_kernels.rotary.api.rotate`; with ``interpret`` anywhere.

    Raises NotImplementedError off an NVIDIA GPU of compute capability 8.0 and up, and for mixed dtypes and
    others than bfloat16 and float32.
    """
    if not interpret:
        device.require_triton()
    device.require_one_dtype(*heads, values, *weights)
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.rotary.triton_kernel import turn

    return turn(heads, values, weights, cos, sin, eps=eps, interpret=interpret)
