"""A token's experts in one GPU kernel: the best of all, then the best of the rest, as often as is asked."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.results import result
from pallas_kernels.triton import iota, load, store


def choose_kernel(logits_ref, bias_ref, valid_ref, ids_ref, weights_ref, *, rule) -> None:
    """One token. References: logits and bias [E], whether the token is valid; ids and weights [K]."""
    experts = logits_ref.shape[0]
    expert, place = iota(pl.next_power_of_2(experts)), iota(pl.next_power_of_2(rule.chosen))
    scores = jax.nn.sigmoid(load(logits_ref, expert, mask=expert < experts))
    choice = scores + load(bias_ref, expert, mask=expert < experts)
    # What is no number comes first, as `jax.lax.top_k` has it; what is no expert never.
    choice = jnp.where(choice != choice, jnp.inf, choice)
    choice = jnp.where(expert < experts, choice, -jnp.inf)
    ids, weights = jnp.zeros(place.shape, jnp.int32), jnp.zeros(place.shape, jnp.float32)
    total = jnp.float32(0)
    for k in range(rule.chosen):
        best = lax.argmax(choice, 0, jnp.int32)
        weight = jnp.sum(jnp.where(expert == best, scores, 0.0))
        ids, weights = jnp.where(place == k, best, ids), jnp.where(place == k, weight, weights)
        choice = jnp.where(expert == best, -jnp.inf, choice)
        total = total + weight
    if rule.normalised:
        weights = weights / (total + 1e-20)
    held = place < rule.chosen
    store(ids_ref, jnp.where(valid_ref[...], ids, -1), place, mask=held)
    store(weights_ref, weights * rule.scale, place, mask=held)


def choose(
    logits: jax.Array, bias: jax.Array, valid: jax.Array, rule, *, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.routing.api.route`, for a rule without groups; with ``interpret`` anywhere."""
    T, E = logits.shape

    def shape(dtype) -> jax.ShapeDtypeStruct:
        return result(logits, (T, rule.chosen), dtype)

    ids, weights = pl.pallas_call(
        partial(choose_kernel, rule=rule),
        grid=(T,),
        in_specs=[
            pl.BlockSpec((None, E), lambda t: (t, 0)),
            pl.BlockSpec((E,), lambda t: (0,)),
            pl.BlockSpec((None,), lambda t: (t,)),
        ],
        out_specs=[pl.BlockSpec((None, rule.chosen), lambda t: (t, 0))] * 2,
        out_shape=(shape(jnp.int32), shape(jnp.float32)),
        # A warp keeps all scores of a token in registers, and its sums need no shared memory.
        compiler_params=plgpu.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
        name="routing",
    )(logits, bias, valid)
    return ids, weights
