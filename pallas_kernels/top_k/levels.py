"""Top-k of a long axis by chunks: only those whose largest value is among the k largest can hold any of them.

On a GPU `jax.lax.top_k` sorts the whole axis. Here the chunks are ranked by their maxima, then the k best
chunks' own chunks in the same way, then what is left. A rank is the count of what goes before: many more
comparisons than in a sort, but all at once, in two kernels (figures: pallas_kernels/LOG.md).
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pallas_kernels import tuning


@dataclass(frozen=True)
class Sizes:
    """Up to ``few`` values are ranked at once; longer axes are cut into chunks, and longer than ``long``
    those again.
    """

    few: int
    long: int


def top_k(x: jax.Array, k: int, *, sizes: Sizes | None = None) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.top_k.api.top_k`. ``sizes``: the device's own (`tuning`) if None. Raises
    NotImplementedError off a GPU.
    """
    if jax.default_backend() != "gpu":
        raise NotImplementedError("measured on GPUs alone")
    sizes = sizes or tuning.sizes("top_k", "levels", Sizes)
    return by_chunks(x, k, chunk_sizes(x.shape[-1], k, sizes))


def chunk_sizes(width: int, k: int, sizes: Sizes) -> tuple[int, ...]:
    """Sizes, powers of two, with which about as many chunks or values are ranked at every level."""
    levels = (width > sizes.few) + (width > sizes.long)
    step = round(math.log2(width / k) / (levels + 1))
    return tuple(2 ** (step * level) for level in range(levels, 0, -1))


def by_chunks(x: jax.Array, k: int, sizes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Top-k with chunks of ``sizes[0]`` values, in whose best ones chunks of ``sizes[1]`` are searched, ...

    Exact: of chunks with equal maxima those of the lower indices are taken, so a tie still goes to the lower
    index. Every size divides the one before.
    """
    keys, ids = _keys(x), jnp.broadcast_to(jnp.arange(x.shape[-1], dtype=jnp.int32), x.shape)
    for size in sizes:
        missing = -keys.shape[-1] % size
        chunks = (keys.shape[-1] + missing) // size
        if chunks <= k:
            continue
        after = [(0, 0)] * (keys.ndim - 1) + [(0, missing)]
        cut = jnp.pad(keys, after, constant_values=jnp.iinfo(keys.dtype).min)
        cut, firsts = cut.reshape(*keys.shape[:-1], chunks, size), ids[..., ::size]
        within = jnp.arange(size, dtype=jnp.int32)
        best = _best(jnp.max(cut, axis=-1), firsts, k)[..., None]
        keys = jnp.take_along_axis(cut, best, axis=-2, mode="promise_in_bounds")
        ids = jnp.take_along_axis(firsts[..., None], best, axis=-2, mode="promise_in_bounds")
        keys, ids = keys.reshape(*x.shape[:-1], -1), (ids + within).reshape(*x.shape[:-1], -1)
    best = _best(keys, ids, k)
    ids = jnp.take_along_axis(ids, best, axis=-1, mode="promise_in_bounds")
    return jnp.take_along_axis(x, ids, axis=-1, mode="promise_in_bounds"), ids


def _keys(x: jax.Array) -> jax.Array:
    """Integers as wide as ``x`` in `jax.lax.top_k`'s order of it, in which every two values have one (-0.0
    comes after 0.0, and NaN first).
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"int{8 * x.dtype.itemsize}"))
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


def _best(keys: Int[Array, "... C"], ids: Int[Array, "... C"], k: int) -> Int[Array, "... k"]:
    """Where the k largest keys are, best first; of equal ones the lower id goes first."""
    one, other = (..., slice(None), None), (..., None, slice(None))
    ahead = jnp.where(ids[other] < ids[one], keys[other] >= keys[one], keys[other] > keys[one])
    rank = jnp.sum(ahead, axis=-1, dtype=jnp.int32)
    places = jnp.arange(keys.shape[-1], dtype=jnp.int32)
    return jnp.sum(
        jnp.where(rank[other] == jnp.arange(k, dtype=jnp.int32)[:, None], places, 0), axis=-1, dtype=jnp.int32
    )
