"""What the decoder needs of a target: the protocol, and what one pass returns."""

from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jddtree.config import TargetConfig
from jddtree.pytree import pytree_dataclass

Cache = Any
"""A pytree whose leaves are [B, S, ...]: row b holds positions 0 .. length[b] - 1 in its first slots."""


@pytree_dataclass
class Pass:
    """One forward pass over N slots.

    hidden: after the final norm, the head's input. features: the tapped layers' outputs, side by side in tap
    order. fresh: this pass's own keys and values, shaped as the cache with N, or a few more, for S. experts:
    chosen experts of every MoE layer, -1 for slots that are not valid.
    """

    hidden: Float[Array, "B N M"]
    features: Float[Array, "B N FM"]
    fresh: Cache
    experts: tuple[Int[Array, "B N K"], ...]


@runtime_checkable
class Target(Protocol):
    """A model that verifies trees. Nothing in it depends on slot order but positions and the mask."""

    config: TargetConfig

    def new_cache(self, rows: int, slots: int, dtype: jnp.dtype) -> Cache:
        """Zeros [rows, slots, ...]."""
        ...

    def embed(self, ids: Int[Array, "B N"]) -> Float[Array, "B N M"]:
        """Token vectors."""
        ...

    def __call__(
        self,
        ids: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        valid: Bool[Array, "B N"],
        mask: UInt32[Array, "_ N W"],
        cache: Cache,
        lengths: Int[Array, " B"],
        taps: tuple[int, ...],
    ) -> Pass:
        """Run N slots against the committed cache; the cache is only read."""
        ...

    def logits(self, hidden: Float[Array, "B N M"]) -> Float[Array, "B N V"]:
        """The head, float32; where it is cut over devices, this one's part of the vocabulary."""
        ...
