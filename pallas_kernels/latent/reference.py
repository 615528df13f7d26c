"""Norms and rotation of latents in plain JAX."""

import jax
import jax.numpy as jnp

from pallas_kernels.norm import rms_norm
from pallas_kernels.rotation import rotated


def prepare(
    q: jax.Array,
    kv: jax.Array,
    q_weight: jax.Array,
    kv_weight: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    eps: float,
) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.latent.api.prepare`."""
    rank = kv_weight.shape[0]
    latent, key = rms_norm(kv[..., :rank], kv_weight, eps), kv[..., rank:].astype(jnp.float32)
    turned = jnp.concatenate(rotated(key[..., 0::2], key[..., 1::2], cos, sin), axis=-1)
    return rms_norm(q, q_weight, eps), jnp.concatenate([latent, turned.astype(kv.dtype)], axis=-1)
