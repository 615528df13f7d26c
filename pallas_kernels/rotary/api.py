"""Norms and rotary positions of queries and keys: what lies between their projections and attention."""

import jax

from pallas_kernels import dispatch
from pallas_kernels.rotary import reference, triton

IMPLEMENTATIONS = (("triton", triton.rotate), ("xla", reference.rotate))


def rotate(
    heads: tuple[jax.Array, ...],
    values: jax.Array,
    weights: tuple[jax.Array | None, ...],
    cos: jax.Array,
    sin: jax.Array,
    *,
    eps: float,
    implementation: str | None = None,
) -> tuple[jax.Array, ...]:
    """Normalise each head where there is a weight, and rotate its channels (j, j + D/2) by angle j.

    The norm is RMS: statistics in float32, cast back, then times the weight. Angles are applied in float32.

    Args:
      heads: arrays [B, N, H, D], each with its own H: queries and keys, or keys alone. D is even.
      values: [B, N, J, D]. They stay as they are, and go along since one kernel may cut all out of one
        product.
      weights: [D] an array of heads; None: it is not normalised.
      cos, sin: [B, N, D/2] float32.
      eps: added to the mean of squares.
      implementation: name one to forbid fallback.

    Returns:
      Every array of heads and the values, in their shapes and dtypes. Raises NotImplementedError where the
      named implementation takes no such device or dtypes.
    """
    return dispatch.call("rotary", IMPLEMENTATIONS, implementation, heads, values, weights, cos, sin, eps=eps)
