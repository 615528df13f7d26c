"""How a row's tokens are chosen: greedily, or sampled with temperature, top-k, top-p and min-p.

Randomness belongs to a row's seed and to the position of the token that is chosen, and to nothing else. So a
text depends on its own prompt, seed and policy alone: not on its neighbours, on the batch, on padding, and,
where every slot is sampled (`jddtree.accept.follow`), not even on the tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from jddtree.errors import InputError
from jddtree.pytree import pytree_dataclass

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy, as in the public reference; dividing by them would overflow."""


@dataclass(frozen=True)
class Greedy:
    """The likeliest token; the lowest id among equals."""


@dataclass(frozen=True)
class Sample:
    """Sample from softmax(logits / temperature) after three cuts, in this order, each on what the last one
    left.

    top_k: keep the k likeliest tokens (None: all). top_p: keep the likeliest tokens up to and including the
    one that takes their sum to top_p. min_p: keep tokens with at least min_p times the likeliest one's
    probability. Among equals the lower id counts as likelier. seed: any 32-bit number.

    Raises:
      InputError: a value is out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        checks = {
            "temperature must be a finite number, 0 or more": 0 <= self.temperature < float("inf"),
            "top-k must be 1 or more": self.top_k is None or self.top_k >= 1,
            "top-p must be above 0 and at most 1": 0 < self.top_p <= 1,
            "min-p must be at least 0 and at most 1": 0 <= self.min_p <= 1,
            "seed must be a whole number from 0 to 4294967295": 0 <= self.seed < 2**32,
        }
        for rule, holds in checks.items():
            if not holds:
                raise InputError(rule)

    @property
    def cuts(self) -> bool:
        """Whether any token is cut."""
        return self.top_k is not None or self.top_p < 1 or self.min_p > 0


Policy = Greedy | Sample
GREEDY = Greedy()


@dataclass(frozen=True)
class Mode:
    """What a program can do, static. Without ``sampled`` all rows are greedy; without ``cuts`` none cuts."""

    sampled: bool = False
    cuts: bool = False

    @classmethod
    def of(cls, policies: Sequence[Policy]) -> "Mode":
        """The least that serves all of them."""
        drawn = [policy for policy in policies if isinstance(policy, Sample)]
        return cls(bool(drawn), any(policy.cuts for policy in drawn))


@pytree_dataclass
class Sampling:
    """Every row's policy as arrays. temperature 0 is greedy; seed is the row's random key."""

    temperature: Float[Array | np.ndarray, " B"]
    top_k: Int[Array | np.ndarray, " B"]
    top_p: Float[Array | np.ndarray, " B"]
    min_p: Float[Array | np.ndarray, " B"]
    seed: UInt32[Array | np.ndarray, "B 2"]


def stack(policies: Sequence[Policy], vocab_size: int) -> Sampling:
    """Policies of all rows as arrays on the host."""
    rows = [policy if isinstance(policy, Sample) else Sample(temperature=0.0) for policy in policies]
    seeds = np.array([row.seed for row in rows], np.uint32)
    return Sampling(
        temperature=np.array([row.temperature for row in rows], np.float32),
        top_k=np.array([min(row.top_k or vocab_size, vocab_size) for row in rows], np.int32),
        top_p=np.array([row.top_p for row in rows], np.float32),
        min_p=np.array([row.min_p for row in rows], np.float32),
        seed=np.array(jax.random.key_data(jax.vmap(jax.random.key)(seeds))),
    )


def is_greedy(sampling: Sampling) -> Bool[Array, " B"]:
    """Rows whose temperature is as good as 0."""
    return jnp.less(sampling.temperature, GREEDY_BELOW)


def scores(logits: Float[Array, "B N V"], sampling: Sampling, mode: Mode) -> Float[Array, "B N V"]:
    """Log-probabilities, up to a constant, that a row samples from; -inf where a token is cut. float32."""
    temperature = jnp.where(is_greedy(sampling), 1.0, sampling.temperature)
    scaled = logits / temperature[:, None, None]
    if not mode.cuts:
        return scaled
    ids = jnp.broadcast_to(jnp.arange(logits.shape[-1], dtype=jnp.int32), scaled.shape)
    negative, ordered = jax.lax.sort((-scaled, ids), num_keys=2)
    best_first = jnp.exp(negative[..., :1] - negative)
    rank = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    best_first = jnp.where(rank < sampling.top_k[:, None, None], best_first, 0.0)
    total = jnp.sum(best_first, axis=-1, keepdims=True)
    before = jnp.cumsum(best_first, axis=-1) - best_first
    # Rounding can take the sum to 1 before the last tokens: a row without a cut keeps them all the same.
    top_p = jnp.where(sampling.top_p < 1, sampling.top_p, jnp.inf)[:, None, None]
    kept = (rank < sampling.top_k[:, None, None]) & (before < top_p * total)
    # The likeliest token has weight 1, so that weights are already relative to it.
    kept = (kept & (best_first >= sampling.min_p[:, None, None])) | (rank == 0)
    row, slot = jnp.arange(scaled.shape[0])[:, None, None], jnp.arange(scaled.shape[1])[:, None]
    allowed = jnp.zeros(scaled.shape, bool).at[row, slot, ordered].set(kept)
    return jnp.where(allowed, scaled, -jnp.inf)


def noise(sampling: Sampling, positions: Int[Array, "B G"], vocab_size: int) -> Float[Array, "B G V"]:
    """Gumbel noise for the token at each position: the largest of scores + noise is a sample."""

    def one(seed, position):
        return jax.random.gumbel(_key(seed, position, 0), (vocab_size,), jnp.float32)

    return jax.vmap(jax.vmap(one, (None, 0)))(sampling.seed, positions)


def coins(sampling: Sampling, positions: Int[Array, "B G"]) -> Float[Array, "B G"]:
    """A uniform number in (0, 1] for each position, independent of `noise`."""

    def one(seed, position):
        return 1.0 - jax.random.uniform(_key(seed, position, 1), (), jnp.float32)

    return jax.vmap(jax.vmap(one, (None, 0)))(sampling.seed, positions)


def _key(seed: Array, position: Array, use: int) -> Array:
    return jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(seed), position), use)
