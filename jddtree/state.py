"""What a decoding program is compiled for, what rows are asked for, and what changes from round to round."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jddtree import sharding
from jddtree.errors import InputError
from jddtree.models.drafter import Drafter
from jddtree.models.target import Cache, Target
from jddtree.pytree import pytree_dataclass
from jddtree.sampling import Mode, Sampling
from jddtree.sharding import Layout

MOST_NODES = 4096
"""Nodes of a round: far more than a pass is worth, and still built and compiled in a minute."""

RUNNING, STOP, LENGTH, FAILED, CANCELLED = range(5)
"""Reasons of a row, on the device. FAILED: a logit was not finite."""


@dataclass(frozen=True)
class Method:
    """What a round drafts. ``name``: "ar" (nothing), "chain" or "tree". ``budget``: nodes a round may verify.

    ``depth``: positions the drafter predicts, D. Static: a program is compiled for one method. Raises
    InputError for more nodes than `MOST_NODES`.
    """

    name: str
    budget: int
    depth: int

    def __post_init__(self):
        if self.budget > MOST_NODES:
            raise InputError(
                f"a budget of {self.budget} nodes is too large: a round verifies {MOST_NODES} at most"
            )

    @classmethod
    def plain(cls) -> "Method":
        """Plain decoding: one token a round."""
        return cls("ar", 0, 0)

    @classmethod
    def chain(cls, block_size: int, budget: int | None = None) -> "Method":
        """The drafter's likeliest token at every position. ``budget``: verify so many nodes, by cutting the
        chain or by slots that are not in use; at a tree's budget it shows what the tree's width costs.
        """
        depth = block_size - 1
        return cls("chain", budget if budget is not None and depth else depth, depth)

    @classmethod
    def tree(cls, block_size: int, budget: int) -> "Method":
        """The best tree of at most ``budget`` nodes; plain rounds if nothing can be drafted."""
        return cls("tree", budget, block_size - 1) if budget and block_size > 1 else cls("tree", 0, 0)


@dataclass(frozen=True)
class Options:
    """What a program is compiled for besides its method. Static.

    mode: which policies its rows may have. rule: how sampled rows walk, one of `jddtree.accept.RULES`.
    top_logprobs: how many of the likeliest tokens are reported beside each new one; None reports no
    log-probabilities at all.
    """

    mode: Mode
    rule: str = "follow"
    top_logprobs: int | None = None


GREEDY_ONLY = Options(Mode())


@pytree_dataclass
class Request:
    """What each row was asked for. The host makes it of NumPy arrays.

    max_new: tokens to generate, the prefill's included, at least 1. max_position: no target position may
    reach it. budget: nodes a round may verify, up to the compiled number. topk: children a node may have.
    stop: token ids that end the text. sampling: the row's policy.
    """

    max_new: Int[Array | np.ndarray, " B"]
    max_position: Int[Array | np.ndarray, " B"]
    budget: Int[Array | np.ndarray, " B"]
    topk: Int[Array | np.ndarray, " B"]
    stop: Bool[Array | np.ndarray, "B V"]
    sampling: Sampling


@pytree_dataclass
class DecodeState:
    """All that changes from round to round; donated to each step.

    tokens: prompt and output by position; the one at ``lengths`` is the anchor. lengths: committed tokens
    before the anchor, which are what the target cache holds. drafter_cache: the same tokens but the last
    ``feature_count``, whose features wait in ``features``. emitted: generated tokens. reason: RUNNING, or why
    the row has ended.
    """

    tokens: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    target_cache: Cache
    drafter_cache: Cache
    features: Float[Array, "B G FM"]
    feature_count: Int[Array, " B"]
    emitted: Int[Array, " B"]
    reason: Int[Array, " B"]


@pytree_dataclass
class Report:
    """What one round (or the prefill) did, for the host.

    accepted: root + accepted nodes, and so new tokens before any cut; 0 for a finished row. kept: how many of
    ``tokens`` were emitted. margins: by how much each new token won (see `jddtree.accept.choose`). logprobs:
    of each new token, from the target's own logits; top_ids and top_logprobs: of the likeliest P tokens
    there (all three empty unless asked for). slots: the accepted path. tree_*: the tree that was verified.
    experts: distinct experts that each MoE layer read, over all rows.
    """

    accepted: Int[Array, " B"]
    kept: Int[Array, " B"]
    reason: Int[Array, " B"]
    tokens: Int[Array, "B G"]
    margins: Float[Array, "B G"]
    logprobs: Float[Array, "B _"]
    top_ids: Int[Array, "B _ P"]
    top_logprobs: Float[Array, "B _ P"]
    slots: Int[Array, "B G"]
    tree_tokens: Int[Array, "B N"]
    tree_parents: Int[Array, "B N"]
    tree_depths: Int[Array, "B N"]
    tree_count: Int[Array, " B"]
    experts: Int[Array, " Lm"]


def new_state(
    target: Target, drafter: Drafter | None, method: Method, rows: int, slots: int, dtype: jnp.dtype
) -> DecodeState:
    """An empty state for ``rows`` prompts; each may grow to ``slots`` committed tokens."""
    drafting = drafter is not None and method.depth > 0
    taps = drafter.target_layers if drafter is not None and drafting else ()
    zeros = jnp.zeros((rows,), jnp.int32)
    return DecodeState(
        tokens=jnp.zeros((rows, slots + 1), jnp.int32),
        lengths=zeros,
        target_cache=target.new_cache(rows, slots, dtype),
        drafter_cache=drafter.new_cache(rows, slots, dtype) if drafter is not None and drafting else (),
        features=jnp.zeros((rows, method.depth + 1, len(taps) * target.config.hidden_size), dtype),
        feature_count=zeros,
        emitted=zeros,
        reason=zeros,
    )


def state_specs(layout: Layout, target: Target, drafter: Drafter | None, state: DecodeState) -> DecodeState:
    """How every array of a state, or of its shapes, is cut."""
    fields = {name: sharding.row_specs(layout, value) for name, value in vars(state).items()}
    fields["target_cache"] = sharding.cache_specs(layout, target.config, state.target_cache)
    if drafter is not None:
        fields["drafter_cache"] = sharding.cache_specs(layout, drafter.config, state.drafter_cache)
    # Not through the constructor: its shape types are those of arrays.
    return jax.tree.unflatten(jax.tree.structure(state), jax.tree.leaves(list(fields.values())))
