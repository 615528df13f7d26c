"""Decoding: prefill, one round (draft, build, verify, accept, commit), and the loop around it.

Plain decoding, chains and trees are the same round over trees of different shape. Widths are of two kinds
that are never derived from each other: N = budget + 1 verify slots, and G = depth + 1 tokens that a path can
hold. The five stages carry their names into profiles.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jddtree import cache, sharding, tree, vocabulary
from jddtree.accept import Path, choose, follow
from jddtree.models.drafter import Drafter
from jddtree.models.target import Cache, Pass, Target
from jddtree.pytree import pytree_dataclass
from jddtree.sampling import is_greedy
from jddtree.state import (
    CANCELLED,
    FAILED,
    LENGTH,
    RUNNING,
    STOP,
    DecodeState,
    Method,
    Options,
    Report,
    Request,
)
from pallas_kernels.tree_attention.api import causal_mask


@pytree_dataclass
class Outcome:
    """What the target's logits come to for a row.

    accepted, emitted, kept, reason: as in Report and DecodeState, after this step. The rest: see Report.
    """

    path: Path
    accepted: Int[Array, " B"]
    emitted: Int[Array, " B"]
    kept: Int[Array, " B"]
    reason: Int[Array, " B"]
    margins: Float[Array, "B G"]
    logprobs: Float[Array, "B _"]
    top_ids: Int[Array, "B _ P"]
    top_logprobs: Float[Array, "B _ P"]


def decode_round(
    target: Target,
    drafter: Drafter | None,
    request: Request,
    state: DecodeState,
    *,
    method: Method,
    options: Options,
) -> tuple[DecodeState, Report]:
    """One round. Finished rows are inert."""
    if drafter is None or not method.depth:
        drafter_cache, candidates = state.drafter_cache, no_tree(state, method)
    else:
        drafter_cache, draft_logits = draft(target, drafter, state, method)
        candidates = build(drafter, request, state, draft_logits, method)
    passed, logits = verify(target, drafter, state, candidates, method)
    active = state.reason == RUNNING
    outcome = accept(request, state, candidates, logits, state.lengths, active, method.depth, options)
    return commit(state, drafter_cache, passed, outcome), _report(candidates, outcome, passed)


def no_tree(state: DecodeState, method: Method) -> tree.Tree:
    """The root alone: plain decoding, or nothing to draft with."""
    return tree.root(_anchor(state), method.budget)


@jax.named_scope("draft")
def draft(
    target: Target, drafter: Drafter, state: DecodeState, method: Method
) -> tuple[Cache, Float[Array, "B D V"]]:
    """Let the drafter see what the last round committed, then predict the block after the anchor."""
    known = state.lengths - state.feature_count
    places = known[:, None] + jnp.arange(method.depth + 1, dtype=jnp.int32)
    context = drafter.context(state.features, places)
    drafter_cache = cache.append(state.drafter_cache, context, state.feature_count, known)
    return drafter_cache, drafter.draft(target, _anchor(state), state.lengths, drafter_cache)


@jax.named_scope("build")
def build(
    drafter: Drafter,
    request: Request,
    state: DecodeState,
    draft_logits: Float[Array, "B D V"],
    method: Method,
) -> tree.Tree:
    """The round's tree. Nodes that would sit past the last position are left out."""
    limit = jnp.minimum(request.max_position, drafter.max_position) - 1 - state.lengths
    if method.name == "chain":
        return tree.spine(
            draft_logits,
            _anchor(state),
            budget=method.budget,
            depth_limit=jnp.minimum(limit, request.budget),
        )
    if (multiplier := drafter.config.greedy_multiplier) != 1.0:
        factor = jnp.where(is_greedy(request.sampling), multiplier, 1.0)
        draft_logits = draft_logits * factor[:, None, None]
    return tree.build(
        draft_logits,
        _anchor(state),
        budget=method.budget,
        row_budget=request.budget,
        topk=request.topk,
        depth_limit=limit,
    )


@jax.named_scope("verify")
def verify(
    target: Target, drafter: Drafter | None, state: DecodeState, candidates: tree.Tree, method: Method
) -> tuple[Pass, Float[Array, "B N V"]]:
    """One pass of the target over the tree; slots that are not in use route to no expert."""
    in_use = jnp.arange(method.budget + 1, dtype=jnp.int32) <= candidates.count[:, None]
    passed = target(
        candidates.tokens,
        state.lengths[:, None] + candidates.depths,
        in_use & (state.reason == RUNNING)[:, None],
        candidates.ancestors,
        state.target_cache,
        state.lengths,
        _taps(drafter, method),
    )
    return passed, target.logits(passed.hidden)


@jax.named_scope("accept")
def accept(
    request: Request,
    state: DecodeState,
    candidates: tree.Tree,
    logits: Float[Array, "B N V"],
    root_position: Int[Array, " B"],
    active: Bool[Array, " B"],
    depth: int,
    options: Options,
) -> Outcome:
    """Choose the target's tokens, walk the tree, and cut what is past a stop, the limit or a bad logit."""
    picked, margins = choose(
        logits, candidates, root_position, request.sampling, depth=depth, mode=options.mode, rule=options.rule
    )
    path = follow(candidates, picked, depth)
    accepted = jnp.where(active, path.count, 0)
    sound = cache.take(vocabulary.finite(logits), path.slots)
    emitted, kept, reason = _finish(path.tokens, accepted, sound, request, state)
    logprobs, top_ids, top_logprobs = _logprobs(cache.take(logits, path.slots), path.tokens, options)
    return Outcome(
        path=path,
        accepted=accepted,
        emitted=emitted,
        kept=kept,
        reason=reason,
        margins=cache.take(margins, path.slots),
        logprobs=logprobs,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )


@jax.named_scope("commit")
def commit(state: DecodeState, drafter_cache: Cache, passed: Pass, outcome: Outcome) -> DecodeState:
    """Write the accepted path, and it alone, to the target's cache; the last token becomes the anchor."""
    slots, kept, lengths = outcome.path.slots, outcome.kept, state.lengths
    return DecodeState(
        tokens=cache.append(state.tokens, outcome.path.tokens, kept, lengths + 1),
        lengths=lengths + kept,
        target_cache=cache.commit(state.target_cache, passed.fresh, slots, kept, lengths),
        drafter_cache=drafter_cache,
        features=cache.take(passed.features, slots),
        feature_count=kept,
        emitted=outcome.emitted,
        reason=outcome.reason,
    )


def decode_chunk(
    target: Target,
    drafter: Drafter | None,
    request: Request,
    state: DecodeState,
    allowed: Int[Array, " B"],
    *,
    method: Method,
    options: Options,
    rounds: int,
) -> tuple[DecodeState, Report, Int[Array, ""]]:
    """Up to ``rounds`` rounds in one program, fewer once every row has finished or had as many as it is
    ``allowed``; a row that is allowed none is ended. A single round is no loop.

    Returns the state, the rounds' reports ([rounds, ...] a leaf) and how many rounds ran.
    """

    def one(state: DecodeState) -> tuple[DecodeState, Report]:
        return decode_round(target, drafter, request, state, method=method, options=options)

    def unfinished(carry) -> Array:
        done, state, _ = carry
        going = (state.reason == RUNNING) & (done < allowed)
        return (done < rounds) & sharding.anywhere(jnp.any(going))

    def step(carry):
        done, state, written = carry
        state, report = one(state)
        return done + 1, state, written.at[done].set(_words(report))

    state = replace(state, reason=jnp.where(allowed > 0, state.reason, CANCELLED))
    if rounds == 1:
        state, report = one(state)
        return state, jax.tree.map(lambda leaf: leaf[None], report), jnp.int32(1)
    _, shapes = jax.eval_shape(one, state)
    # All of a round's report is one write: a device spends longer on launching a dozen than on making them.
    written = jnp.zeros((rounds, sum(leaf.size for leaf in jax.tree.leaves(shapes))), jnp.int32)
    done, state, written = jax.lax.while_loop(unfinished, step, (jnp.int32(0), state, written))
    return state, _reports(written, shapes), done


def _words(report: Report) -> Int[Array, " W"]:
    """A round's report, all of 32-bit leaves, as one row of words."""
    leaves = jax.tree.leaves(report)
    return jnp.concatenate([jax.lax.bitcast_convert_type(leaf, jnp.int32).reshape(-1) for leaf in leaves])


def _reports(written: Int[Array, "rounds W"], shapes: Report) -> Report:
    """What `_words` made of rounds, as reports with leaves [rounds, ...]; ``shapes``: those of one."""
    leaves, structure = jax.tree.flatten(shapes)
    parts = jnp.split(written, np.cumsum([leaf.size for leaf in leaves])[:-1], axis=1)
    found = [
        jax.lax.bitcast_convert_type(part, leaf.dtype).reshape(len(written), *leaf.shape)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, found)


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
    options: Options,
) -> tuple[DecodeState, Report]:
    """Commit the first ``count`` prompt tokens of a chunk; where ``last``, also pick the first new token."""
    order = jnp.arange(ids.shape[1], dtype=jnp.int32)
    valid = order < count[:, None]
    positions = state.lengths[:, None] + jnp.where(valid, order, 0)
    mask = causal_mask(ids.shape[1])
    passed = target(ids, positions, valid, mask, state.target_cache, state.lengths, _taps(drafter, method))
    drafter_cache = state.drafter_cache
    if drafter is not None and method.depth:
        context = drafter.context(passed.features, positions)
        drafter_cache = cache.append(drafter_cache, context, count, state.lengths)
    final = jnp.maximum(count - 1, 0)[:, None]
    logits = target.logits(cache.take(passed.hidden, final))
    only_root = tree.root(cache.take(ids, final)[:, 0])
    lengths = state.lengths + count
    outcome = accept(request, state, only_root, logits, lengths - 1, last, 0, options)
    tokens = cache.append(state.tokens, ids, count, state.lengths)
    committed = DecodeState(
        tokens=cache.append(tokens, outcome.path.tokens, outcome.kept, lengths),
        lengths=lengths,
        target_cache=cache.append(state.target_cache, passed.fresh, count, state.lengths),
        drafter_cache=drafter_cache,
        features=state.features,
        feature_count=state.feature_count,
        emitted=outcome.emitted,
        reason=outcome.reason,
    )
    return committed, _report(only_root, outcome, passed)


def _anchor(state: DecodeState) -> Int[Array, " B"]:
    return cache.take(state.tokens, state.lengths[:, None])[:, 0]


def _taps(drafter: Drafter | None, method: Method) -> tuple[int, ...]:
    return drafter.target_layers if drafter is not None and method.depth else ()


def _finish(
    tokens: Array, count: Array, sound: Array, request: Request, state: DecodeState
) -> tuple[Array, Array, Array]:
    """Cut new tokens [B, G], of which ``count`` are real, at a stop token, at max_new, at an unsound logit.

    Returns the new total emitted, the tokens kept, and each row's reason.
    """
    real = jnp.arange(tokens.shape[1], dtype=jnp.int32) < count[:, None]
    room = request.max_new - state.emitted
    stops = jnp.take_along_axis(request.stop, tokens, axis=1)
    until_stop = _first(stops & real, count) + 1
    until_bad = _first(~sound & real, count)
    kept = jnp.minimum(jnp.minimum(count, room), jnp.minimum(until_stop, until_bad))
    emitted = state.emitted + kept
    reason = jnp.where(emitted >= request.max_new, LENGTH, RUNNING)
    reason = jnp.where((until_bad == kept) & (until_bad < jnp.minimum(count, room)), FAILED, reason)
    # A stop token is chosen from a sound logit, so it wins over a bad one right after it.
    reason = jnp.where((until_stop == kept) & (until_stop <= count), STOP, reason)
    return emitted, kept, jnp.where(count > 0, reason, state.reason).astype(jnp.int32)


def _first(flags: Array, otherwise: Array) -> Array:
    """Index of the first True in every row of [B, G], else ``otherwise``."""
    return jnp.where(jnp.any(flags, axis=1), jnp.argmax(flags, axis=1).astype(jnp.int32), otherwise)


def _logprobs(logits: Array, tokens: Array, options: Options) -> tuple[Array, Array, Array]:
    """Log-probabilities of the path's tokens and of the likeliest tokens, from logits [B, G, V]."""
    rows = logits.shape[0]
    if options.top_logprobs is None:
        nothing = jnp.zeros((rows, 0), jnp.float32)
        return nothing, jnp.zeros((rows, 0, 0), jnp.int32), nothing[:, :, None][:, :, :0]
    normalised = jax.nn.log_softmax(vocabulary.whole(logits), axis=-1)
    chosen = jnp.take_along_axis(normalised, tokens[:, :, None], axis=-1)[..., 0]
    best, ids = jax.lax.top_k(normalised, options.top_logprobs)
    return chosen, ids.astype(jnp.int32), best


def _report(candidates: tree.Tree, outcome: Outcome, passed: Pass) -> Report:
    """For the host, so of all rows, on every device."""
    candidates, outcome, experts = sharding.every_row((candidates, outcome, passed.experts))
    return Report(
        accepted=outcome.accepted,
        kept=outcome.kept,
        reason=outcome.reason,
        tokens=outcome.path.tokens,
        margins=outcome.margins,
        logprobs=outcome.logprobs,
        top_ids=outcome.top_ids,
        top_logprobs=outcome.top_logprobs,
        slots=outcome.path.slots,
        tree_tokens=candidates.tokens,
        tree_parents=candidates.parents,
        tree_depths=candidates.depths,
        tree_count=candidates.count,
        experts=_distinct_experts(experts),
    )


def _distinct_experts(chosen: tuple[Array, ...]) -> Int[Array, " Lm"]:
    """How many experts each MoE layer's slots went to."""
    if not chosen:
        return jnp.zeros((0,), jnp.int32)
    flat = jnp.sort(jnp.stack([ids.reshape(-1) for ids in chosen]), axis=1)
    new = jnp.concatenate([jnp.ones_like(flat[:, :1], bool), flat[:, 1:] != flat[:, :-1]], axis=1)
    return jnp.sum(new & (flat >= 0), axis=1, dtype=jnp.int32)
