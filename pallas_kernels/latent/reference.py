"""Norms and rotation of latents in plain JAX."""

import jax
import jax.numpy as jnp

from pallas_kernels.norm import rms_norm


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
    even, odd = key[..., 0::2], key[..., 1::2]
    turned = jnp.concatenate([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return rms_norm(q, q_weight, eps), jnp.concatenate([latent, turned.astype(kv.dtype)], axis=-1)
