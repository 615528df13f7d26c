"""The k largest of a long axis, in order: draft logits to a tree's candidates."""

import jax

from pallas_kernels import dispatch
from pallas_kernels.top_k import levels, reference

IMPLEMENTATIONS = (("levels", levels.top_k), ("xla", reference.top_k))


def top_k(x: jax.Array, k: int, *, implementation: str | None = None) -> tuple[jax.Array, jax.Array]:
    """Values and indices of the k largest of the last axis, best first; of equal values the lower index.

    Args:
      x: [..., V] floating.
      k: static, 1 to V.
      implementation: name one to forbid fallback.

    Returns:
      ([..., k] in x's dtype, [..., k] int32).
    """
    return dispatch.call("top_k", IMPLEMENTATIONS, implementation, x, k)
