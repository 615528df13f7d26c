"""The norm that references share."""

import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """RMS norm over the last axis as the public code does it: statistics in float32, cast back, then times
    the weight.
    """
    x32 = x.astype(jnp.float32)
    scaled = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return weight * scaled.astype(x.dtype)
