"""Draft trees: the best ``budget`` prefixes under the product of the drafter's marginals (spec ddtree_dflash,
section 3).

Slot 0 is the root (the anchor); slot i is the node selected i-th, so a parent's slot is smaller than its
children's. Scores are sums of log-probabilities, never positive, so a parent never scores below its child.
That allows to list the prefixes that a small tree can hold before any score is known (`jddtree.prefixes`),
and to build a large one in a sweep over the depths: keep the best ``budget`` prefixes of a depth, extend them
by the next depth's tokens, and select the best ``budget`` of all depths at the end. Ties go to the smaller
tuple of token ranks from the root, a prefix before its extension. The result is the tree that a heap would
build node by node.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from jddtree import vocabulary
from jddtree.prefixes import Prefixes, listed
from jddtree.pytree import pytree_dataclass
from pallas_kernels.top_k.api import top_k
from pallas_kernels.tree_attention.api import pack_mask

LONGEST = {"gpu": 32_768}
"""Prefixes of the longest list by platform, 8,192 elsewhere: a tree that could hold more is built by a sweep.
Its hundreds of small kernels cost a GPU more than the sums over a long list; a CPU has nothing to launch.
"""


@pytree_dataclass
class Tree:
    """N = budget + 1 slots a row, of which the first 1 + count are in use.

    tokens: slot 0 is the anchor. parents: -1 for the root and for unused slots, so an unused slot is nobody's
    child. depths: 0 for the root and for unused slots. count: nodes, the root not counted. ancestors: bit k %
    32 of word k // 32 in row n says that slot k is slot n or above it; an unused slot sees itself alone.
    """

    tokens: Int[Array, "B N"]
    parents: Int[Array, "B N"]
    depths: Int[Array, "B N"]
    count: Int[Array, " B"]
    ancestors: UInt32[Array, "B N W"]


def build(
    logits: Float[Array, "B D V"],
    anchor: Int[Array, " B"],
    *,
    budget: int,
    row_budget: Int[Array | np.ndarray, " B"],
    topk: Int[Array | np.ndarray, " B"],
    depth_limit: Int[Array, " B"],
) -> Tree:
    """The best tree of at most ``budget`` nodes from draft logits (row d-1 holds depth d).

    Args:
      logits: float32, or this device's part of the vocabulary (`jddtree.vocabulary`). Log-probabilities are
        normalised over the full row.
      anchor: the root's token.
      budget: static. The tree is smaller only when there are no more prefixes.
      row_budget: nodes of each row, at most ``budget``; the rest of the slots stay unused.
      topk: children of a node come from the depth's best min(topk, budget, V) tokens.
      depth_limit: deepest depth that may hold a node.
    """
    width = min(budget, vocabulary.size(logits))
    if width == 0 or logits.shape[1] == 0:
        return root(anchor, budget)
    values, tokens = vocabulary.top_k(logits, width)
    # No slice: for one of top-k's results XLA would sort the whole vocabulary, which takes a CPU 4 ms.
    largest = jnp.max(values, axis=-1, keepdims=True)
    log_probs = values - vocabulary.log_sum_exp(logits, largest)
    return build_from_top(
        tokens, log_probs, anchor, budget=budget, row_budget=row_budget, topk=topk, depth_limit=depth_limit
    )


def build_from_top(
    tokens: Int[Array, "B D C"],
    log_probs: Float[Array, "B D C"],
    anchor: Int[Array, " B"],
    *,
    budget: int,
    row_budget: Int[Array | np.ndarray, " B"],
    topk: Int[Array | np.ndarray, " B"],
    depth_limit: Int[Array, " B"],
) -> Tree:
    """`build` from the depths' C best tokens and their log-probabilities, best first. Non-finite ones are
    never used.
    """
    depth, width = log_probs.shape[1:]
    allowed = (jnp.arange(width) < topk[:, None, None]) & (
        jnp.arange(depth)[:, None] < depth_limit[:, None, None]
    )
    log_probs = jnp.where(allowed & jnp.isfinite(log_probs), log_probs, -jnp.inf)
    # Path sums in float32 would reorder nodes closer than about 1e-6; a build is small enough for float64.
    prefixes = listed(budget, depth, width, LONGEST.get(jax.default_backend(), 8192))
    with jax.enable_x64(True):
        if prefixes is None:
            selected = jax.vmap(partial(_sweep, budget=budget))(log_probs)
        else:
            selected = _select(log_probs, prefixes, budget)
    parents, depths, ranks = selected
    # Nodes are in order of selection, so the first few are the best tree of so few nodes.
    used = (parents >= 0) & (jnp.arange(budget, dtype=jnp.int32) < row_budget[:, None])
    count = jnp.sum(used, axis=-1, dtype=jnp.int32)
    parents, depths = jnp.where(used, parents, -1), jnp.where(used, depths, 0)
    node_tokens = jnp.take_along_axis(
        tokens.reshape(tokens.shape[0], -1), jnp.where(used, (depths - 1) * width + ranks, 0), axis=1
    )
    return _assemble(anchor, node_tokens, parents, depths, count, depth)


def _select(log_probs: Float[Array, "B D C"], prefixes: Prefixes, budget: int):
    """The rows' nodes in selection order: parent slots (-1 where there is no node), depths and ranks, all
    int32 [B, budget]. Takes the best of all prefixes; of equal ones the first in the list.
    """
    ended = jnp.zeros((*log_probs.shape[:2], 1), jnp.float64)
    steps = jnp.concatenate([log_probs.astype(jnp.float64), ended], axis=-1)
    scores = jnp.zeros((log_probs.shape[0], len(prefixes.last)), jnp.float64)
    for level, ranks in enumerate(prefixes.ranks):
        scores = scores + steps[:, level].at[:, ranks].get(mode="promise_in_bounds")
    missing = max(budget - len(prefixes.last), 0)
    scores = jnp.pad(scores, ((0, 0), (0, missing)), constant_values=-jnp.inf)
    best, chosen = top_k(scores, budget)
    used = jnp.isfinite(best)
    chosen = jnp.minimum(chosen, len(prefixes.last) - 1).astype(jnp.int32)
    above = jnp.asarray(prefixes.parents)[chosen]
    is_parent = (above[:, :, None] == chosen[:, None, :]) & used[:, None, :]
    places = jnp.arange(1, budget + 1, dtype=jnp.int32)
    slots = jnp.sum(jnp.where(is_parent, places, 0), axis=-1, dtype=jnp.int32)  # 0, the root: no parent
    return (
        jnp.where(used, slots, -1),
        jnp.where(used, jnp.asarray(prefixes.depths)[chosen], 0),
        jnp.where(used, jnp.asarray(prefixes.last)[chosen], 0),
    )


def _sweep(log_probs: Float[Array, "D C"], *, budget: int):
    """`_select` for one row and any budget, a depth at a time."""
    depth, width = log_probs.shape
    # The i-th best parent's j-th token can be among the best ``budget`` only if (i + 1)(j + 1) <= budget.
    pairs = [(i, j) for i in range(budget) for j in range(min(width, budget // (i + 1)))]
    parent_of, rank_of = np.array(pairs, np.int32).T
    words, place = _rank_places(depth, width)

    def extend(level, row):
        scores, paths = level
        step, word, shift = row
        candidate_scores = scores[parent_of] + step[rank_of].astype(jnp.float64)
        digit = jnp.asarray(rank_of + 1, jnp.uint32) << shift
        candidate_paths = paths[:, parent_of] | jnp.where(
            jnp.arange(words, dtype=jnp.int32)[:, None] == word, digit, jnp.uint32(0)
        )
        best, paths, chosen = _best(candidate_scores, candidate_paths, budget)
        return (best, paths), (best, paths, jnp.asarray(parent_of)[chosen], jnp.asarray(rank_of)[chosen])

    root_level = (
        jnp.where(jnp.arange(budget) == 0, 0.0, -jnp.inf).astype(jnp.float64),
        jnp.zeros((words, budget), jnp.uint32),
    )
    _, (scores, paths, parents, ranks) = jax.lax.scan(extend, root_level, (log_probs, *place))
    scores, order = scores.reshape(-1), jnp.moveaxis(paths, 1, 0).reshape(words, -1)
    best, _, chosen = _best(scores, order, budget)
    used = jnp.isfinite(best)
    slot_of = jnp.zeros((depth * budget,), jnp.int32)
    slots = jnp.arange(1, budget + 1, dtype=jnp.int32)
    slot_of = slot_of.at[jnp.where(used, chosen, depth * budget)].set(slots, mode="drop")
    level, place_in_level = chosen // budget, parents.reshape(-1)[chosen]
    above = slot_of[jnp.maximum(level - 1, 0) * budget + place_in_level]
    parent_slots = jnp.where(used, jnp.where(level == 0, 0, above), -1)
    return (
        parent_slots.astype(jnp.int32),
        jnp.where(used, level + 1, 0).astype(jnp.int32),
        jnp.where(used, ranks.reshape(-1)[chosen], 0).astype(jnp.int32),
    )


def _rank_places(depth: int, width: int) -> tuple[int, tuple[np.ndarray, np.ndarray]]:
    """Where each depth's rank sits in a path's sort key: number of words, and word and shift a depth.

    A path's ranks, each plus one, fill equal bit fields from the most significant down; absent ranks are 0,
    so that a prefix comes before its extension.
    """
    bits = width.bit_length()
    per_word = 32 // bits
    level = np.arange(depth)
    shift = bits * (per_word - 1 - level % per_word)
    return -(-depth // per_word), ((level // per_word).astype(np.int32), shift.astype(np.uint32))


def _best(scores: Array, paths: Array, count: int) -> tuple[Array, Array, Array]:
    """The ``count`` best of [C] by (score down, path up): scores, paths [words, count], and their indices
    (int32).
    """
    missing = max(count - scores.shape[0], 0)
    scores = jnp.pad(scores, (0, missing), constant_values=-jnp.inf)
    paths = jnp.pad(paths, ((0, 0), (0, missing)))
    index = jnp.arange(scores.shape[0], dtype=jnp.int32)
    ordered = jax.lax.sort((-scores, *paths, index), num_keys=1 + paths.shape[0])
    negative, *best, index = (operand[:count] for operand in ordered)
    return -negative, jnp.stack(best), jnp.minimum(index, scores.shape[0] - missing - 1)


def spine(
    logits: Float[Array, "B D V"],
    anchor: Int[Array, " B"],
    *,
    budget: int | None = None,
    depth_limit: Int[Array, " B"],
) -> Tree:
    """The chain: every depth's likeliest token, D nodes (fewer at the depth limit). With ``budget`` the tree
    has so many slots after the root, the first D of them in use.
    """
    width = logits.shape[1] if budget is None else budget
    depth = min(logits.shape[1], width)
    count = jnp.clip(depth_limit, 0, depth).astype(jnp.int32)
    used = jnp.arange(width) < count[:, None]
    slots = jnp.arange(width, dtype=jnp.int32)
    tokens, _ = vocabulary.likeliest(logits[:, :depth])
    tokens = jnp.pad(tokens, ((0, 0), (0, width - depth)))
    return _assemble(anchor, tokens, jnp.where(used, slots, -1), jnp.where(used, slots + 1, 0), count, depth)


def root(anchor: Int[Array, " B"], budget: int = 0) -> Tree:
    """No nodes: plain decoding. ``budget`` unused slots may follow the root."""
    rows = anchor.shape[0]
    nothing = jnp.zeros((rows, budget), jnp.int32)
    return _assemble(anchor, nothing, nothing - 1, nothing, jnp.zeros((rows,), jnp.int32), 0)


def _assemble(anchor: Array, tokens: Array, parents: Array, depths: Array, count: Array, depth: int) -> Tree:
    """Put the root in front of [B, budget] nodes and derive the ancestor bits."""
    rows = anchor.shape[0]
    used = jnp.arange(tokens.shape[1]) < count[:, None]
    tokens = jnp.concatenate([anchor[:, None], jnp.where(used, tokens, 0)], axis=1)
    parents = jnp.concatenate([jnp.full((rows, 1), -1, jnp.int32), parents], axis=1)
    depths = jnp.concatenate([jnp.zeros((rows, 1), jnp.int32), depths], axis=1)
    return Tree(tokens, parents, depths, count, ancestor_bits(parents, depth))


def ancestor_bits(parents: Int[Array, "B N"], depth: int) -> UInt32[Array, "B N W"]:
    """`Tree.ancestors` of a tree of at most ``depth`` levels below the root."""
    slots = jnp.arange(parents.shape[1], dtype=jnp.int32)
    at = jnp.broadcast_to(slots, parents.shape)
    visible = slots == at[:, :, None]
    for _ in range(depth):
        at = jnp.where(at >= 0, jnp.take_along_axis(parents, jnp.maximum(at, 0), axis=1), -1)
        visible = visible | (slots == at[:, :, None])
    return pack_mask(visible)


def first_child_next_sibling(
    parents: Int[Array, "B N"],
) -> tuple[Int[Array, "B N"], Int[Array, "B N"]]:
    """The tree as two links a slot, children in increasing slot order, -1 for none (spec section 4)."""
    slots = jnp.arange(parents.shape[1], dtype=jnp.int32)
    none = jnp.int32(parents.shape[1])
    is_child = parents[:, None, :] == slots[:, None]
    first = jnp.min(jnp.where(is_child, slots, none), axis=2)
    younger = (
        (parents[:, None, :] == parents[:, :, None]) & (slots > slots[:, None]) & (parents[:, :, None] >= 0)
    )
    sibling = jnp.min(jnp.where(younger, slots, none), axis=2)
    return jnp.where(first == none, -1, first), jnp.where(sibling == none, -1, sibling)
