"""Routed experts in plain JAX: the experts that were hit, each dequantised once."""

import jax
import jax.numpy as jnp

from pallas_kernels.grouped_matmul.tiles import ExpertTiles, published

BLOCK_BYTES = 64 << 20
"""Dequantised weights held at a time."""


def unpack(weight, rounding: str) -> jax.Array:
    """INT4 (packed, scale) to numbers [..., out, in]: bfloat16 q x scale rounded, or float32 exact.

    Raises ValueError for another rounding.
    """
    packed, scale = weight
    shifts = 4 * jnp.arange(8, dtype=jnp.int32)
    q = ((packed[..., None] >> shifts) & 15) - 8
    groups = q.reshape(*scale.shape, -1).astype(jnp.float32)
    exact = (groups * scale.astype(jnp.float32)[..., None]).reshape(*packed.shape[:-1], -1)
    if rounding == "bfloat16":
        return exact.astype(jnp.bfloat16)
    if rounding == "float32":
        return exact
    raise ValueError(f"rounding must be 'bfloat16' or 'float32', not {rounding!r}")


def expert_mlp(
    x: jax.Array, expert_ids: jax.Array, expert_weights: jax.Array, experts, *, rounding: str
) -> jax.Array:
    """See `pallas_kernels.grouped_matmul.api.expert_mlp`.

    T tokens hit at most T x K experts. These come first, in blocks small enough to hold as plain numbers; the
    number of blocks is static, since a loop that asks the device when to stop costs a synchronisation a turn.
    """

    def dense(some) -> list[jax.Array]:
        """Gate, up and down of some experts, [E, out, in], in x's dtype."""
        few = published(some) if isinstance(some, ExpertTiles) else some
        return [(w if isinstance(w, jax.Array) else unpack(w, rounding)).astype(x.dtype) for w in few]

    x = x[: len(expert_ids)]
    count, inner_width, _ = jax.eval_shape(dense, experts)[0].shape
    chosen = expert_ids[:, :, None] == jnp.arange(count, dtype=expert_ids.dtype)
    token_weights = jnp.sum(jnp.where(chosen, expert_weights[:, :, None], 0.0), axis=1)
    hit_first = jnp.argsort(~jnp.any(chosen, axis=(0, 1)), stable=True)
    needed = min(count, expert_ids.size)
    one_expert = 3 * x.shape[1] * inner_width * x.dtype.itemsize
    blocks = -(-needed // max(1, BLOCK_BYTES // one_expert))
    size = -(-needed // blocks)

    def add_block(block, total):
        place = block * size + jnp.arange(size, dtype=jnp.int32)
        some = hit_first[jnp.minimum(place, needed - 1)]
        gate, up, down = dense(jax.tree.map(lambda leaf: leaf[some], experts))
        weight = jnp.where(place < needed, token_weights[:, some], 0.0)
        inner = jax.nn.silu(jnp.einsum("tm,eim->eti", x, gate))
        inner = inner * jnp.einsum("tm,eim->eti", x, up)
        y = jnp.einsum("eti,emi->etm", inner, down).astype(jnp.float32)
        return total + jnp.einsum("te,etm->tm", weight, y, precision=jax.lax.Precision.HIGHEST)

    return jax.lax.fori_loop(0, blocks, add_block, jnp.zeros(x.shape, jnp.float32)).astype(x.dtype)
