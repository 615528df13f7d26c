"""Top-k of a long axis by chunks: only those whose largest value is among the k largest can hold any of them.

On a GPU `jax.lax.top_k` sorts the whole axis. Here it sees the chunks' maxima, then the k best chunks' own
chunks in the same way, then what is left (figures: pallas_kernels/LOG.md).
"""

import jax
import jax.numpy as jnp

from pallas_kernels.top_k import reference

SHORTEST, LONG = 4096, 32_768
"""Shorter axes are left to `jax.lax.top_k`; long ones go through two levels of chunks."""


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.top_k.api.top_k`. Raises NotImplementedError off a GPU and for a short axis."""
    if jax.default_backend() != "gpu":
        raise NotImplementedError("measured on GPUs alone")
    if x.shape[-1] < SHORTEST:
        raise NotImplementedError(f"{x.shape[-1]} values are few")
    small = 32 if k <= 32 else 16
    return by_chunks(x, k, (small,) if x.shape[-1] < LONG else (512 if k <= 32 else 128, small))


def by_chunks(x: jax.Array, k: int, sizes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Top-k with chunks of ``sizes[0]`` values, in whose best ones chunks of ``sizes[1]`` are searched, ...

    Exact: of chunks with equal maxima the earlier are taken, so a tie still goes to the lower index.
    """
    size = sizes[0] if sizes else 0
    chunks = -(-x.shape[-1] // size) if size else 0
    if chunks <= k:
        return reference.top_k(x, k)
    padding = [(0, 0)] * (x.ndim - 1) + [(0, chunks * size - x.shape[-1])]
    cut = jnp.pad(x, padding, constant_values=-jnp.inf).reshape(*x.shape[:-1], chunks, size)
    best = jnp.sort(jax.lax.top_k(jnp.max(cut, axis=-1), k)[1], axis=-1)
    few = jnp.take_along_axis(cut, best[..., None], axis=-2).reshape(*x.shape[:-1], k * size)
    values, place = by_chunks(few, k, sizes[1:])
    return values, jnp.take_along_axis(best, place // size, axis=-1) * size + place % size
