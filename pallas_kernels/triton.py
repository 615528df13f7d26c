"""What Triton kernels share: which GPUs take them, and reads that may leave out elements."""

import warnings

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton as plgpu

# Told at lowering, long after the kernel's caller has returned.
warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)


def load(ref, *places: jax.Array, mask: jax.Array) -> jax.Array:
    """Elements of a reference at ``places`` (an index array a dimension, broadcast), zeros outside the mask.

    Index arrays and no slices: a padded part reaches past the end, which a slice may not.
    """
    shape = jnp.broadcast_shapes(*(place.shape for place in places))
    view = ref.at[tuple(jnp.broadcast_to(place, shape) for place in places)]
    return plgpu.load(view, mask=jnp.broadcast_to(mask, shape), other=jnp.zeros((), ref.dtype))


def store(ref, values: jax.Array, *places: jax.Array, mask: jax.Array) -> None:
    """Write ``values``, cast, at ``places`` as `load` reads them; nothing outside the mask."""
    places = tuple(jnp.broadcast_to(place, values.shape) for place in places)
    plgpu.store(ref.at[places], values.astype(ref.dtype), mask=mask)


def iota(size: int) -> jax.Array:
    """0 .. size - 1, int32."""
    return lax.iota(jnp.int32, size)


def product(a: jax.Array, b: jax.Array, transposed: bool) -> jax.Array:
    """a @ b, or a @ b.T, accumulated in float32; float32 operands are not rounded to TF32."""
    return lax.dot_general(
        *(a, b, (((1,), (1 if transposed else 0,)), ((), ()))),
        precision=lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
