"""Products with dense weights in plain JAX."""

import jax

from pallas_kernels.dense.unnormed import Unnormed
from pallas_kernels.norm import rms_norm


def products(x: jax.Array | Unnormed, weights: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """See `pallas_kernels.dense.api.products`."""
    token = x.normed() if isinstance(x, Unnormed) else x
    return tuple(token @ weight.T for weight in weights)


def swiglu(x: jax.Array | Unnormed, gate_up: jax.Array) -> jax.Array:
    """See `pallas_kernels.dense.api.swiglu`."""
    token = x.normed() if isinstance(x, Unnormed) else x
    both = token @ gate_up.reshape(-1, gate_up.shape[-1]).T
    gate, up = both[:, : gate_up.shape[1]], both[:, gate_up.shape[1] :]
    return jax.nn.silu(gate) * up


def added(
    x: jax.Array,
    weight: jax.Array,
    residual: jax.Array,
    norm_weight: jax.Array,
    *,
    eps: float,
    unnormed: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.dense.api.added`; XLA works out every norm."""
    del unnormed
    total = residual + x @ weight.T
    return total, rms_norm(total, norm_weight, eps)
