"""Tree attention: N new slots attend to a committed prefix and, under a bit mask, to each other.

The mask covers the N x N block alone, so its size does not grow with the context (DESIGN section 5). Latent
attention (MLA in absorbed form) is the case J = 1 without separate values: the values are the first
``value_width`` key channels.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import dispatch
from pallas_kernels.tree_attention import mosaic, reference, tpu, triton

IMPLEMENTATIONS = (
    ("mosaic_tpu", tpu.tree_attention),
    ("mosaic_gpu", mosaic.tree_attention),
    ("triton", triton.tree_attention),
    ("xla", reference.tree_attention),
)

WIDE = 256
"""Wider keys go to XLA before Triton: it is faster with them (BENCHMARKS.md, "kernels on one H200")."""

WIDE_ORDER = (*IMPLEMENTATIONS[:2], IMPLEMENTATIONS[3], IMPLEMENTATIONS[2])

FEW = 16
"""Up to so many query rows a key head go to Triton before all else of a GPU: they fill its smallest tile."""

FEW_ORDER = tuple(IMPLEMENTATIONS[place] for place in (0, 2, 1, 3))


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
    lower: jax.Array | None = None,
    value_width: int | None = None,
    implementation: str | None = None,
) -> jax.Array:
    """Attention of a block of slots over [prefix ; block].

    Args:
      q: [B, N, H, Kw] queries, already rotated.
      prefix_k, prefix_v: [B, S, J, Kw] and [B, S, J, Vw], the cache; H is a multiple of J.
      block_k, block_v: [B, N, J, Kw] and [B, N, J, Vw], this round's own keys and values. Keys that are NaN
        make the output NaN where their slot is seen, and nowhere else.
      lengths: [B] int32. Row b sees the first lengths[b] cache slots, without a mask.
      mask: [B or 1, N, W] uint32. Bit k % 32 of word k // 32 in row n set: slot n sees slot k. Every slot
        sees itself.
      scale: multiplies the scores.
      lower: [B, N] int32, the first cache slot that each query sees (sliding windows); None: all.
      value_width: with no separate values, values are the first ``value_width`` channels of the keys.
      implementation: name one to forbid fallback.

    Returns:
      [B, N, H, Vw] in q's dtype; scores and sums are float32.
    """
    order = IMPLEMENTATIONS if q.shape[-1] <= WIDE else WIDE_ORDER
    if q.shape[1] * q.shape[2] <= FEW * prefix_k.shape[2]:
        order = FEW_ORDER
    return dispatch.call(
        "tree_attention",
        order,
        implementation,
        q,
        prefix_k,
        prefix_v,
        block_k,
        block_v,
        lengths,
        mask,
        scale=scale,
        lower=lower,
        value_width=value_width,
    )


def pack_mask(visible: jax.Array | np.ndarray) -> jax.Array:
    """[..., N, N] bool to [..., N, W] uint32, W = ceil(N / 32): bit k % 32 of word k // 32 is column k."""
    width = visible.shape[-1]
    words = -(-width // 32)
    padding = [(0, 0)] * (visible.ndim - 1) + [(0, words * 32 - width)]
    if isinstance(visible, np.ndarray):
        # On the host: the compiler takes a second to fold a prefill's mask of constants.
        octets = np.packbits(np.pad(visible, padding), axis=-1, bitorder="little")
        return jnp.asarray(octets.view("<u4"))
    padded = jnp.pad(visible, padding)
    bits = padded.reshape(*padded.shape[:-1], words, 32).astype(jnp.uint32)
    return jnp.sum(bits << jnp.arange(32, dtype=jnp.uint32), axis=-1, dtype=jnp.uint32)


def causal_mask(size: int) -> jax.Array:
    """[1, size, W] uint32: slot n sees slots 0 .. n."""
    return pack_mask(np.tri(size, dtype=bool)[None])
