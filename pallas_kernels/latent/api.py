"""What lies between latent attention's first projections and what reads them: two norms and a rotation."""

import jax

from pallas_kernels import dispatch
from pallas_kernels.latent import reference, triton

IMPLEMENTATIONS = (("triton", triton.prepare), ("xla", reference.prepare))


def prepare(
    q: jax.Array,
    kv: jax.Array,
    q_weight: jax.Array,
    kv_weight: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    eps: float,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The low-rank queries, normalised, and the tokens' latents as a cache holds them.

    Norms are RMS: statistics in float32, cast back, then times the weight. Angles are applied in float32.

    Args:
      q: [B, N, Q] low-rank queries.
      kv: [B, N, R + P]: R channels to normalise, then a key of P channels whose pairs (2j, 2j+1) are to be
        rotated by angle j.
      q_weight, kv_weight: [Q] and [R].
      cos, sin: [B, N, P/2] float32.
      eps: added to the mean of squares.
      implementation: name one to forbid fallback.

    Returns:
      [B, N, Q], and [B, N, R + P] with the rotated key as [evens | odds]. Raises NotImplementedError where
      the named implementation takes no such device or dtypes.
    """
    return dispatch.call(
        "latent", IMPLEMENTATIONS, implementation, q, kv, q_weight, kv_weight, cos, sin, eps=eps
    )
