"""Routed experts in plain JAX: a loop over the experts that were hit, each dequantised once."""

import jax
import jax.numpy as jnp


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
    x: jax.Array, expert_ids: jax.Array, expert_weights: jax.Array, gate, up, down, *, rounding: str
) -> jax.Array:
    """See `pallas_kernels.grouped_matmul.api.expert_mlp`."""
    experts = jax.tree.leaves(gate)[0].shape[0]
    chosen = expert_ids[:, :, None] == jnp.arange(experts, dtype=expert_ids.dtype)
    token_weights = jnp.sum(jnp.where(chosen, expert_weights[:, :, None], 0.0), axis=1)
    hit = jnp.any(chosen, axis=(0, 1))
    hit_first = jnp.argsort(~hit, stable=True)

    def dense(weight, expert):
        one = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, expert, keepdims=False), weight)
        return (one if isinstance(one, jax.Array) else unpack(one, rounding)).astype(x.dtype)

    def add_expert(i, total):
        expert = hit_first[i]
        inner = jax.nn.silu(x @ dense(gate, expert).T) * (x @ dense(up, expert).T)
        y = (inner @ dense(down, expert).T).astype(jnp.float32)
        weight = jax.lax.dynamic_index_in_dim(token_weights, expert, axis=1)
        return total + weight * y

    total = jnp.zeros(x.shape, jnp.float32)
    return jax.lax.fori_loop(0, jnp.sum(hit, dtype=jnp.int32), add_expert, total).astype(x.dtype)
