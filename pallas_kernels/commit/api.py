"""Writing the slots of a pass that are kept to the ends of a cache's rows."""

from typing import Any

import jax

from pallas_kernels import dispatch
from pallas_kernels.commit import reference, triton

IMPLEMENTATIONS = (("triton", triton.commit), ("xla", reference.commit))


def commit(
    cache: Any,
    fresh: Any,
    slots: jax.Array,
    count: jax.Array,
    lengths: jax.Array,
    *,
    implementation: str | None = None,
) -> Any:
    """A cache with the first ``count[b]`` of row b's slots written from row ``lengths[b]`` on.

    Args:
      cache: a tree of leaves [B, S, ...], each with a dtype of its own; what is written is cast to it.
      fresh: the same tree with leaves [B, N, ...].
      slots: [B, A] int32 in 0 .. N - 1, in the order in which they are written.
      count: [B] int32, 0 to A; 0 leaves a row as it is.
      lengths: [B] int32, 0 or more. What would go past S is dropped.
      implementation: name one to forbid fallback.

    Returns:
      The cache, in the same memory where the caller gives it up. Raises NotImplementedError where the named
      implementation takes no such device.
    """
    return dispatch.call("commit", IMPLEMENTATIONS, implementation, cache, fresh, slots, count, lengths)
