"""Norms and rotation of latents on GPUs (`triton_kernel`): one kernel for three or four."""

import jax

from pallas_kernels import device


def prepare(
    q: jax.Array,
    kv: jax.Array,
    q_weight: jax.Array,
    kv_weight: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    eps: float,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.latent.api.prepare`; with ``interpret`` anywhere.

    Raises NotImplementedError off an NVIDIA GPU of compute capability 8.0 and up, and for mixed dtypes and
    others than bfloat16 and float32.
    """
    if not interpret:
        device.require_triton()
    device.require_one_dtype(q, kv, q_weight, kv_weight)
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.latent.triton_kernel import finish

    return finish(q, kv, q_weight, kv_weight, cos, sin, eps=eps, interpret=interpret)
