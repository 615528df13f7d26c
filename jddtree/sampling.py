"""Policies: how a token is picked from the target's logits."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@dataclass(frozen=True)
class Greedy:
    """The likeliest token; the lowest id among equals."""

    def pick(self, logits: Float[Array, "B N V"]) -> Int[Array, "B N"]:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
