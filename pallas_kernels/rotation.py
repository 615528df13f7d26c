"""The rotation of a pair of channels, which references and kernels share."""

import jax


def rotated(low: jax.Array, high: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The pairs (low, high) turned by their angles; all float32, broadcast."""
    return low * cos - high * sin, high * cos + low * sin
