"""The choice of experts in plain JAX."""

import jax
import jax.numpy as jnp


def route(logits: jax.Array, bias: jax.Array, valid: jax.Array, rule) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.routing.api.route`."""
    scores = jax.nn.sigmoid(logits)
    choice = scores + bias
    if rule.groups > 1:
        groups = choice.reshape(choice.shape[0], rule.groups, -1)
        best_two = jnp.sum(jax.lax.top_k(groups, 2)[0], axis=-1)
        kept = jax.lax.top_k(best_two, rule.kept_groups)[1]
        keep = jnp.any(kept[:, :, None] == jnp.arange(rule.groups), axis=1)
        choice = jnp.where(keep[:, :, None], groups, -jnp.inf).reshape(choice.shape)
    ids = jax.lax.top_k(choice, rule.chosen)[1]
    weights = jnp.take_along_axis(scores, ids, axis=-1)
    if rule.normalised:
        # Term by term: XLA makes kernels of their own of a reduction, and of what it sums.
        total = sum(weights[:, k : k + 1] for k in range(rule.chosen))
        weights = weights / (total + 1e-20)
    return jnp.where(valid[:, None], ids, -1), weights * rule.scale
