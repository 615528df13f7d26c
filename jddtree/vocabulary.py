"""Logits whose vocabulary is cut over devices: each holds a run of ids, [..., V / devices].

What is asked of them is worked out on each device's part, and then from the parts' few answers. Ids are the
whole vocabulary's, and of equal logits the lower id goes first, as with the vocabulary in one piece.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jddtree.sharding import width_axes
from pallas_kernels.top_k.api import top_k as plain_top_k


def size(logits: Float[Array, "... V"]) -> int:
    """Tokens of the whole vocabulary."""
    axes = width_axes()
    return logits.shape[-1] * (jax.lax.axis_size(axes) if axes else 1)


def whole(logits: Float[Array, "... V"]) -> Float[Array, "... W"]:
    """The logits of all tokens, on every device."""
    axes = width_axes()
    return jax.lax.all_gather(logits, axes, axis=logits.ndim - 1, tiled=True) if axes else logits


def finite(logits: Float[Array, "... V"]) -> Bool[Array, "..."]:
    """Whether all of a row's logits are finite numbers."""
    sound, axes = jnp.all(jnp.isfinite(logits), axis=-1), width_axes()
    return jax.lax.pmin(sound.astype(jnp.int32), axes) > 0 if axes else sound


def likeliest(logits: Float[Array, "... V"]) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
    """The likeliest token, and by how much it leads the next."""
    ids = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    others = jnp.where(jnp.arange(logits.shape[-1]) == ids[..., None], -jnp.inf, logits)
    best = jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    second, axes = jnp.max(others, axis=-1), width_axes()
    if not axes:
        return ids, best - second
    ids = ids + logits.shape[-1] * jax.lax.axis_index(axes)
    bests, seconds, ids = (jax.lax.all_gather(each, axes) for each in (best, second, ids))
    # Parts are in the order of ids, so the first of equal maxima has the lowest id.
    part = jnp.argmax(bests, axis=0)[None]
    is_winner = jnp.arange(bests.shape[0]).reshape(-1, *[1] * best.ndim) == part
    second = jnp.max(jnp.where(is_winner, seconds, bests), axis=0)
    return jnp.take_along_axis(ids, part, axis=0)[0], jnp.take_along_axis(bests, part, axis=0)[0] - second


def top_k(logits: Float[Array, "... V"], k: int) -> tuple[Float[Array, "... k"], Int[Array, "... k"]]:
    """The k likeliest tokens' logits and ids, best first; ``k`` is at most the whole vocabulary."""
    axes = width_axes()
    values, ids = plain_top_k(logits, min(k, logits.shape[-1]))
    if not axes:
        return values, ids
    ids = ids + logits.shape[-1] * jax.lax.axis_index(axes)
    values, ids = (jax.lax.all_gather(each, axes, axis=each.ndim - 1, tiled=True) for each in (values, ids))
    values, place = jax.lax.top_k(values, k)
    return values, jnp.take_along_axis(ids, place, axis=-1)


def log_sum_exp(logits: Float[Array, "... V"], largest: Float[Array, "... 1"]) -> Float[Array, "... 1"]:
    """Of all tokens' logits, whose ``largest`` is known: that saves a pass over them."""
    shift, axes = jnp.where(jnp.isfinite(largest), largest, 0), width_axes()
    total = jnp.sum(jnp.exp(logits - shift), axis=-1, keepdims=True)
    return jnp.log(jax.lax.psum(total, axes) if axes else total) + shift
