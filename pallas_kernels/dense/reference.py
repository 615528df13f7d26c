"""Products with dense weights in plain JAX."""

import jax

from pallas_kernels.norm import rms_norm


def products(x: jax.Array, weights: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """See `pallas_kernels.dense.api.products`."""
    return tuple(x @ weight.T for weight in weights)


def swiglu(x: jax.Array, gate_up: jax.Array) -> jax.Array:
    """See `pallas_kernels.dense.api.swiglu`."""
    both = x @ gate_up.reshape(-1, gate_up.shape[-1]).T
    gate, up = both[:, : gate_up.shape[1]], both[:, gate_up.shape[1] :]
    return jax.nn.silu(gate) * up


def added(
    x: jax.Array, weight: jax.Array, residual: jax.Array, norm_weight: jax.Array, *, eps: float
) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.dense.api.added`."""
    total = residual + x @ weight.T
    return total, rms_norm(total, norm_weight, eps)
