"""Decoding: state, prefill, one round (draft, build, verify, accept, commit), and the loop around it.

Plain decoding, chains and trees are the same round over trees of different shape. Widths are of two kinds
that are never derived from each other: N = budget + 1 verify slots, and G = depth + 1 tokens that a path can
hold.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jddtree import cache, tree
from jddtree.accept import follow
from jddtree.models.drafter import Drafter
from jddtree.models.target import Cache, Target
from jddtree.pytree import pytree_dataclass
from jddtree.sampling import Greedy
from pallas_kernels.tree_attention.api import causal_mask

RUNNING, STOP, LENGTH = 0, 1, 2


@dataclass(frozen=True)
class Method:
    """What a round drafts. ``name``: "ar" (nothing), "chain" or "tree". ``budget``: nodes a round may verify.

    ``depth``: positions the drafter predicts, D. Static: a program is compiled for one method.
    """

    name: str
    budget: int
    depth: int

    @classmethod
    def plain(cls) -> "Method":
        """Plain decoding: one token a round."""
        return cls("ar", 0, 0)

    @classmethod
    def chain(cls, block_size: int) -> "Method":
        """The drafter's likeliest token at every position."""
        return cls("chain", block_size - 1, block_size - 1)

    @classmethod
    def tree(cls, block_size: int, budget: int) -> "Method":
        """The best tree of at most ``budget`` nodes; plain rounds if nothing can be drafted."""
        return cls("tree", budget, block_size - 1) if budget and block_size > 1 else cls("tree", 0, 0)


@pytree_dataclass
class Request:
    """What each row was asked for. The host makes it of NumPy arrays.

    max_new: tokens to generate, the prefill's included, at least 1. max_position: no target position may
    reach it.
    topk: children a node may have. stop: token ids that end the text.
    """

    max_new: Int[Array | np.ndarray, " B"]
    max_position: Int[Array | np.ndarray, " B"]
    topk: Int[Array | np.ndarray, " B"]
    stop: Bool[Array | np.ndarray, "B V"]


@pytree_dataclass
class DecodeState:
    """All that changes from round to round; donated to each step.

    tokens: prompt and output by position; the one at ``lengths`` is the anchor. lengths: committed tokens
    before the anchor, which are what the target cache holds. drafter_cache: the same tokens but the last
    ``feature_count``, whose features wait in ``features``. emitted: generated tokens. reason: RUNNING, STOP
    or LENGTH.
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
    """What one round did, for the host.

    accepted: root + accepted nodes, and so new tokens before any cut; 0 for a finished row. kept: how many of
    ``tokens`` were emitted. margins: the target's top-1 minus top-2 logit at each new token. slots: the
    accepted path. tree_*: the tree that was verified.
    """

    accepted: Int[Array, " B"]
    kept: Int[Array, " B"]
    tokens: Int[Array, "B G"]
    margins: Float[Array, "B G"]
    slots: Int[Array, "B G"]
    tree_tokens: Int[Array, "B N"]
    tree_parents: Int[Array, "B N"]
    tree_depths: Int[Array, "B N"]
    tree_count: Int[Array, " B"]
    reason: Int[Array, " B"]


def new_state(
    target: Target, drafter: Drafter | None, method: Method, rows: int, slots: int, dtype: jnp.dtype
) -> DecodeState:
    """An empty state for ``rows`` prompts; each may grow to ``slots`` committed tokens."""
    taps = drafter.target_layers if drafter is not None and method.depth else ()
    zeros = jnp.zeros((rows,), jnp.int32)
    return DecodeState(
        tokens=jnp.zeros((rows, slots + 1), jnp.int32),
        lengths=zeros,
        target_cache=target.new_cache(rows, slots, dtype),
        drafter_cache=drafter.new_cache(rows, slots, dtype) if drafter is not None and method.depth else (),
        features=jnp.zeros((rows, method.depth + 1, len(taps) * target.config.hidden_size), dtype),
        feature_count=zeros,
        emitted=zeros,
        reason=zeros,
    )


def prefill(
    target: Target,
    drafter: Drafter | None,
    request: Request,
    state: DecodeState,
    ids: Int[Array, "B C"],
    count: Int[Array, " B"],
    last: Bool[Array, " B"],
    *,
    method: Method,
    policy: Greedy,
) -> tuple[DecodeState, Report]:
    """Commit the first ``count`` prompt tokens of a chunk; where ``last``, also pick the first new token."""
    width = ids.shape[1]
    order = jnp.arange(width, dtype=jnp.int32)
    valid = order < count[:, None]
    positions = state.lengths[:, None] + jnp.where(valid, order, 0)
    taps = drafter.target_layers if drafter is not None and method.depth else ()
    passed = target(ids, positions, valid, causal_mask(width), state.target_cache, state.lengths, taps)
    drafter_cache = state.drafter_cache
    if drafter is not None and method.depth:
        context = drafter.context(passed.features, positions)
        drafter_cache = cache.append(drafter_cache, context, count, state.lengths)
    logits = target.logits(_take(passed.hidden, jnp.maximum(count - 1, 0)[:, None]))
    first = policy.pick(logits)
    lengths = state.lengths + count
    emitted, kept, reason = _finish(first, last.astype(jnp.int32), request, state)
    tokens = _write(state.tokens, ids, count, state.lengths)
    state = DecodeState(
        tokens=_write(tokens, first, kept, lengths),
        lengths=lengths,
        target_cache=cache.append(state.target_cache, passed.fresh, count, state.lengths),
        drafter_cache=drafter_cache,
        features=state.features,
        feature_count=state.feature_count,
        emitted=emitted,
        reason=reason,
    )
    margins = _margins(logits, first)
    only_root = tree.root(first[:, 0])
    return state, _report(only_root, kept, kept, first, margins, jnp.zeros_like(first), reason)


def decode_round(
    target: Target,
    drafter: Drafter | None,
    request: Request,
    state: DecodeState,
    *,
    method: Method,
    policy: Greedy,
) -> tuple[DecodeState, Report]:
    """One round (DESIGN section 3). Finished rows are inert."""
    active = state.reason == RUNNING
    lengths = state.lengths
    anchor = _take(state.tokens, lengths[:, None])[:, 0]

    drafter_cache, taps = state.drafter_cache, ()
    if drafter is None or not method.depth:
        candidates = tree.root(anchor, method.budget)
    else:
        with jax.named_scope("draft"):
            taps, known = drafter.target_layers, lengths - state.feature_count
            places = known[:, None] + jnp.arange(method.depth + 1, dtype=jnp.int32)
            context = drafter.context(state.features, places)
            drafter_cache = cache.append(drafter_cache, context, state.feature_count, known)
            draft_logits = drafter.draft(target, anchor, lengths, drafter_cache)
        with jax.named_scope("build"):
            limit = jnp.minimum(request.max_position, drafter.max_position) - 1 - lengths
            candidates = _candidates(draft_logits, anchor, limit, jnp.asarray(request.topk), method)

    with jax.named_scope("verify"):
        in_use = jnp.arange(method.budget + 1, dtype=jnp.int32) <= candidates.count[:, None]
        positions = lengths[:, None] + candidates.depths
        valid = in_use & active[:, None]
        passed = target(
            candidates.tokens, positions, valid, candidates.ancestors, state.target_cache, lengths, taps
        )
        logits = target.logits(passed.hidden)

    with jax.named_scope("accept"):
        picked = policy.pick(logits)
        path = follow(candidates, picked, method.depth)
        accepted = jnp.where(active, path.count, 0)
        emitted, kept, reason = _finish(path.tokens, accepted, request, state)

    with jax.named_scope("commit"):
        state = DecodeState(
            tokens=_write(state.tokens, path.tokens, kept, lengths + 1),
            lengths=lengths + kept,
            target_cache=cache.commit(state.target_cache, passed.fresh, path.slots, kept, lengths),
            drafter_cache=drafter_cache,
            features=_take(passed.features, path.slots),
            feature_count=kept,
            emitted=emitted,
            reason=reason,
        )
    margins = _take(_margins(logits, picked), path.slots)
    return state, _report(candidates, accepted, kept, path.tokens, margins, path.slots, reason)


def decode_chunk(
    target: Target,
    drafter: Drafter | None,
    request: Request,
    state: DecodeState,
    *,
    method: Method,
    policy: Greedy,
    rounds: int,
) -> tuple[DecodeState, Report, Int[Array, ""]]:
    """Up to ``rounds`` rounds in one program, fewer once every row has finished.

    Returns the state, the rounds' reports ([rounds, ...] a leaf) and how many rounds ran.
    """

    def one(state: DecodeState) -> tuple[DecodeState, Report]:
        return decode_round(target, drafter, request, state, method=method, policy=policy)

    def unfinished(carry) -> Array:
        done, state, _ = carry
        return (done < rounds) & jnp.any(state.reason == RUNNING)

    def step(carry):
        done, state, reports = carry
        state, report = one(state)
        return done + 1, state, jax.tree.map(lambda all_, new: all_.at[done].set(new), reports, report)

    _, shapes = jax.eval_shape(one, state)
    reports = jax.tree.map(lambda leaf: jnp.zeros((rounds, *leaf.shape), leaf.dtype), shapes)
    done, state, reports = jax.lax.while_loop(unfinished, step, (jnp.int32(0), state, reports))
    return state, reports, done


def _candidates(logits: Array, anchor: Array, limit: Array, topk: Array, method: Method) -> tree.Tree:
    if method.name == "chain":
        return tree.spine(logits, anchor, depth_limit=limit)
    return tree.build(logits, anchor, budget=method.budget, topk=topk, depth_limit=limit)


def _finish(tokens: Array, count: Array, request: Request, state: DecodeState) -> tuple[Array, Array, Array]:
    """Cut new tokens [B, G], of which ``count`` are real, at a stop token and at max_new.

    Returns the new total emitted, the tokens kept, and each row's reason.
    """
    order = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    stops = jnp.take_along_axis(request.stop, tokens, axis=1) & (order < count[:, None])
    stopped = jnp.any(stops, axis=1)
    until_stop = jnp.where(stopped, jnp.argmax(stops, axis=1).astype(jnp.int32) + 1, count)
    room = request.max_new - state.emitted
    kept = jnp.minimum(until_stop, room)
    emitted = state.emitted + kept
    reason = jnp.where(emitted >= request.max_new, LENGTH, RUNNING)
    reason = jnp.where(stopped & (until_stop <= room), STOP, reason)
    return emitted, kept, jnp.where(count > 0, reason, state.reason).astype(jnp.int32)


def _take(values: Array, slots: Array) -> Array:
    """values [B, N, ...] at slots [B, A]: [B, A, ...]."""
    return jnp.take_along_axis(values, slots.reshape(*slots.shape, *[1] * (values.ndim - 2)), axis=1)


def _write(tokens: Array, new: Array, count: Array, at: Array) -> Array:
    """Put the first ``count`` of new [B, A] into tokens [B, T] from position ``at`` on."""
    return cache.append(tokens, new, count, at)


def _margins(logits: Array, picked: Array) -> Array:
    """Top-1 minus top-2 logit, [B, N]."""
    best = jnp.max(logits, axis=-1)
    others = jnp.where(jnp.arange(logits.shape[-1]) == picked[..., None], -jnp.inf, logits)
    return best - jnp.max(others, axis=-1)


def _report(candidates: tree.Tree, accepted, kept, tokens, margins, slots, reason) -> Report:
    return Report(
        accepted=accepted,
        kept=kept,
        tokens=tokens,
        margins=margins,
        slots=slots,
        tree_tokens=candidates.tokens,
        tree_parents=candidates.parents,
        tree_depths=candidates.depths,
        tree_count=candidates.count,
        reason=reason,
    )
