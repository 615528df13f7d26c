"""Tree attention in plain JAX: two parts, each with its own softmax maximum, merged by log-sum-exp."""

import jax
import jax.numpy as jnp


def unpack_mask(mask: jax.Array, width: int) -> jax.Array:
    """[..., N, W] uint32 words to [..., N, width] bool."""
    column = jnp.arange(width, dtype=jnp.uint32)
    return (mask[..., column // 32] >> (column % 32)) & jnp.uint32(1) == 1


def partial_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Softmax attention over one part of the keys.

    q [B, N, J, G, Kw], k [B, S, J, Kw], v [B, S, J, Vw], visible [B or 1, N or 1, S] bool. Returns the
    normalised output [B, N, J, G, Vw] and the log-sum-exp of the scores [B, N, J, G], both float32; a query
    that sees nothing gets zeros and -inf.
    """
    scores = jnp.einsum("bnjgk,bsjk->bnjgs", q, k, preferred_element_type=jnp.float32) * scale
    scores = jnp.where(visible[:, :, None, None, :], scores, -jnp.inf)
    peak = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(peak), peak, 0.0))
    total = jnp.sum(weights, axis=-1)
    sums = jnp.einsum("bnjgs,bsjv->bnjgv", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    safe = jnp.where(total == 0, 1.0, total)
    return sums / safe[..., None], jnp.where(total == 0, -jnp.inf, jnp.log(safe) + peak[..., 0])


def tree_attention(
    q: jax.Array,
    prefix_k: jax.Array,
    prefix_v: jax.Array | None,
    block_k: jax.Array,
    block_v: jax.Array | None,
    lengths: jax.Array,
    mask: jax.Array,
    *,
    scale: float,
    lower: jax.Array | None,
    value_width: int | None,
) -> jax.Array:
    """See `pallas_kernels.tree_attention.api.tree_attention`."""
    # Latents are weighted whole, and what is no value is cut from the sums: a sliced cache is copied.
    prefix_v = prefix_k if prefix_v is None else prefix_v
    block_v = block_k if block_v is None else block_v
    rows, slots, heads, width = q.shape
    groups = q.reshape(rows, slots, prefix_k.shape[2], heads // prefix_k.shape[2], width)
    position = jnp.arange(prefix_k.shape[1], dtype=jnp.int32)[None, None]
    committed = position < lengths[:, None, None]
    if lower is not None:
        committed = committed & (position >= lower[:, :, None])
    prefix, prefix_lse = partial_attention(groups, prefix_k, prefix_v, committed, scale)
    # 0 * NaN is NaN: a slot that has gone wrong would reach those that do not see it. Those that do still get
    # NaN, from its keys.
    block_v = jnp.where(jnp.isnan(block_v), jnp.zeros_like(block_v), block_v)
    block, block_lse = partial_attention(groups, block_k, block_v, unpack_mask(mask, slots), scale)
    share = jnp.exp(prefix_lse - jnp.logaddexp(prefix_lse, block_lse))[..., None]
    merged = (prefix * share + block * (1 - share))[..., :value_width]
    return merged.reshape(rows, slots, heads, -1).astype(q.dtype)
