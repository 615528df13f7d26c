"""The norm, in plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """RMS norm over the last axis as the public code does it: statistics in float32, cast back, then times
    the weight.
    """
    x32 = x.astype(jnp.float32)
    if single := x.size == x.shape[-1]:
        # With a row of zeros, left out again: XLA makes one GPU kernel of a norm of rows, two of one's.
        x32 = x32.reshape(1, -1) * np.array([[1], [0]], np.float32)
    scaled = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    if single:
        scaled = scaled[:1].reshape(x.shape)
    return weight * scaled.astype(x.dtype)
