"""A token whose norm is left to the kernel that multiplies it."""

from dataclasses import dataclass, field
from functools import reduce
from operator import add

import jax
import jax.numpy as jnp

from pallas_kernels.norm import rms_norm


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Unnormed:
    """The RMS norm of residual + the sum of ``parts``, not yet worked out.

    parts: [S, 1, M] float32, a product's. residual: [1, M]. weight: the norm's, [M]. eps: added to the mean
    of squares.
    """

    parts: jax.Array
    residual: jax.Array
    weight: jax.Array
    eps: float = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the norm: [1, M]."""
        return self.residual.shape

    @property
    def dtype(self) -> jnp.dtype:
        """Of the norm."""
        return self.residual.dtype

    def total(self) -> jax.Array:
        """The residual stream with the product added, [1, M]."""
        product, kept = reduce(add, self.parts), jnp.finfo(self.dtype)
        # Rounded as a product is: a cast alone XLA may leave out.
        product = jax.lax.reduce_precision(product, kept.nexp, kept.nmant)
        return self.residual + product.astype(self.dtype)

    def normed(self) -> jax.Array:
        """The norm, [1, M]."""
        return rms_norm(self.total(), self.weight, self.eps)
