"""What the decoder needs of a drafter."""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jddtree.config import DFlashConfig
from jddtree.models.target import Cache, Target


@runtime_checkable
class Drafter(Protocol):
    """A model that predicts a block of tokens at once from the target's features."""

    config: DFlashConfig
    """Its sizes."""

    block_size: int
    """G: the anchor and D = G - 1 drafted positions."""

    target_layers: tuple[int, ...]
    """The target's layers, from 0, whose outputs it reads."""

    max_position: int
    """Positions from here on cannot be drafted."""

    def new_cache(self, rows: int, slots: int, dtype: jnp.dtype) -> Cache:
        """Zeros [rows, slots, ...]."""
        ...

    def context(self, features: Float[Array, "B T FM"], positions: Int[Array, "B T"]) -> Cache:
        """What the cache keeps of committed tokens, shaped as the cache with T for S."""
        ...

    def draft(
        self, target: Target, anchor: Int[Array, " B"], lengths: Int[Array, " B"], cache: Cache
    ) -> Float[Array, "B D V"]:
        """Logits of the D positions after the anchor, which sits at position ``lengths``; float32.

        ``cache`` holds the positions before the anchor, and is only read.
        """
        ...
