"""Norms and rotation of latents on GPUs (`triton_kernel`): one kernel for three or four."""

import jax
import jax.numpy as jnp

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
    dtypes = {array.dtype for array in (q, kv, q_weight, kv_weight)}
    if len(dtypes) > 1 or q.dtype not in (jnp.bfloat16, jnp.float32):
        raise NotImplementedError(f"dtypes {', '.join(sorted(map(str, dtypes)))}")
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.latent.triton_kernel import finish

    return finish(q, kv, q_weight, kv_weight, cos, sin, eps=eps, interpret=interpret)
