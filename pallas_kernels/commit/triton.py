"""Commits on GPUs (`triton_kernel`): one launch for all leaves, where XLA scatters into each alone."""

from typing import Any

import jax

from pallas_kernels import device

LEAVES = 128
"""Of a launch, at most: its arguments, three pointers a leaf, have 4 KB on older drivers."""


def commit(
    cache: Any,
    fresh: Any,
    slots: jax.Array,
    count: jax.Array,
    lengths: jax.Array,
    *,
    interpret: bool = False,
) -> Any:
    """See `pallas_kernels.commit.api.commit`; with ``interpret`` anywhere.

    Raises NotImplementedError off an NVIDIA GPU of compute capability 8.0 and up.
    """
    if not interpret:
        device.require_triton()
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.commit.triton_kernel import write

    leaves, structure = jax.tree.flatten(cache)
    news = structure.flatten_up_to(fresh)
    written = []
    for first in range(0, len(leaves), LEAVES):
        some = slice(first, first + LEAVES)
        written += write(leaves[some], news[some], slots, count, lengths, interpret=interpret)
    return jax.tree.unflatten(structure, written)
