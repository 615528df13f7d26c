"""Norms and rotary positions of queries and keys in plain JAX."""

import jax
import jax.numpy as jnp

from pallas_kernels import rotation
from pallas_kernels.norm import rms_norm


def rotate(
    heads: tuple[jax.Array, ...],
    values: jax.Array,
    weights: tuple[jax.Array | None, ...],
    cos: jax.Array,
    sin: jax.Array,
    *,
    eps: float,
) -> tuple[jax.Array, ...]:
    """See `pallas_kernels.rotary.api.rotate`."""
    cos, sin = cos[:, :, None], sin[:, :, None]

    def rotated(x: jax.Array, weight: jax.Array | None) -> jax.Array:
        if weight is not None:
            x = rms_norm(x, weight, eps)
        low, high = (half.astype(jnp.float32) for half in jnp.split(x, 2, axis=-1))
        return jnp.concatenate(rotation.rotated(low, high, cos, sin), axis=-1).astype(x.dtype)

    return *map(rotated, heads, weights), values
