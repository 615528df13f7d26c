"""Products of few tokens with dense weights, and what lies around them in a layer."""

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch
from pallas_kernels.dense import mosaic, reference
from pallas_kernels.dense.unnormed import Unnormed

PRODUCTS = (("mosaic_gpu", mosaic.products), ("xla", reference.products))
SWIGLU = (("mosaic_gpu", mosaic.swiglu), ("xla", reference.swiglu))
ADDED = (("mosaic_gpu", mosaic.added), ("xla", reference.added))


def whole_slots(rows: int, slots: int, dtype: jnp.dtype) -> int:
    """How many slots a row should have where it needs ``slots``: as many, or those few more with which there
    are kernels here for the products of all rows' tokens.
    """
    return mosaic.whole_slots(rows, slots, dtype)


def products(
    x: jax.Array | Unnormed, weights: tuple[jax.Array, ...], *, implementation: str | None = None
) -> tuple[jax.Array, ...]:
    """x W^T for every W, in one launch where there is a kernel.

    Args:
      x: [T, M] tokens, or one that `added` left.
      weights: arrays [O, M], each with its own O.
      implementation: name one to forbid fallback.

    Returns:
      An array [T, O] a weight, in x's dtype. Raises NotImplementedError where the named implementation takes
      no such device, dtypes or sizes.
    """
    return dispatch.call("dense_products", PRODUCTS, implementation, x, weights)


def swiglu(x: jax.Array | Unnormed, gate_up: jax.Array, *, implementation: str | None = None) -> jax.Array:
    """silu(gate x) * up x, both products rounded to x's dtype before.

    Args:
      x: [T, M] tokens, or one that `added` left.
      gate_up: [2, F, M]: the weights of gate, then those of up.
      implementation: name one to forbid fallback.

    Returns:
      [T, F] in x's dtype. Raises NotImplementedError as `products`.
    """
    return dispatch.call("dense_swiglu", SWIGLU, implementation, x, gate_up)


def added(
    x: jax.Array,
    weight: jax.Array,
    residual: jax.Array,
    norm_weight: jax.Array,
    *,
    eps: float,
    unnormed: bool = False,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array | Unnormed]:
    """residual + x W^T, and the RMS norm of that (statistics in float32, cast back, then times the weight).

    Args:
      x: [T, K] tokens.
      weight: [M, K].
      residual: [T, M] in x's dtype.
      norm_weight: [M].
      eps: added to the mean of squares.
      unnormed: the norm may be left to `products` or `swiglu`, where those have a kernel that works it out
        while its first weights are on their way.
      implementation: name one to forbid fallback.

    Returns:
      The sum and its norm, [T, M] in x's dtype, or with ``unnormed`` maybe what the norm is made of. Raises
      NotImplementedError as `products`.
    """
    return dispatch.call(
        "dense_added", ADDED, implementation, x, weight, residual, norm_weight, eps=eps, unnormed=unnormed
    )
