"""Reference data for the tree: building it, following the target through it, keeping the accepted slots."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jddtree.accept import follow
from jddtree.cache import commit
from jddtree.compare.checks import Case, Cases, read_arrays, read_facts
from jddtree.compare.padding import padded, widen
from jddtree.tree import Tree, ancestor_bits, build, build_from_top, first_child_next_sibling
from pallas_kernels.tree_attention.reference import unpack_mask

Golden = Mapping[str, np.ndarray]

NEAR_TIE = 1e-5
"""Scores closer than this may come in another order when log-probabilities are computed anew in float32."""


def tree_build(folder: Path) -> Cases:
    """The tree from the reference's own top tokens, exactly; and from the logits, up to ties."""
    index = folder / "index.json"
    facts = {entry["name"]: entry for entry in read_facts(index)} if index.is_file() else {}
    for path in sorted(folder.glob("*.npz")):

        def body(case: Case, path: Path = path) -> None:
            golden = read_arrays(path)
            if golden["top_log_probs"].size:
                _from_top(case, golden)
            _from_logits(case, golden, facts.get(path.stem, {}))

        yield path.stem, body


def _from_top(case: Case, golden: Golden) -> None:
    anchor, limits = _inputs(golden)
    tokens, log_probs = _roomy(golden["top_token_ids"], 0.0), _roomy(golden["top_log_probs"], -np.inf)
    tree, visible, links = jax.device_get(
        _build_with_views(tokens, log_probs, anchor, budget=_size(int(golden["budget"])), **limits)
    )
    visible = visible[0]
    count = len(golden["node_token_ids"])
    start, used = int(golden["start"]), slice(0, count + 1)
    case.equal("count", tree.count[0], count)
    case.equal("node_token_ids", tree.tokens[0, 1 : count + 1], golden["node_token_ids"])
    case.equal("parents", tree.parents[0, used], golden["parents"])
    case.equal("position_offsets", tree.depths[0, used], golden["position_offsets"])
    case.equal("node_depths", tree.depths[0, 1 : count + 1], golden["node_depths"])
    ranks = [
        np.argmax(golden["top_token_ids"][depth - 1] == token)
        for token, depth in zip(tree.tokens[0, 1 : count + 1], tree.depths[0, 1 : count + 1], strict=True)
    ]
    case.equal("node_ranks", np.array(ranks, int), golden["node_ranks"])
    case.equal("verify_input_ids", tree.tokens[0, used], golden["verify_input_ids"])
    case.equal("verify_position_ids", start + tree.depths[0, used], golden["verify_position_ids"])
    case.equal("visibility", visible[used, used], golden["visibility"])
    case.equal(
        "padding sees itself alone", visible[count + 1 :], np.eye(len(visible), dtype=bool)[count + 1 :]
    )
    case.equal(
        "padding is nobody's child", tree.parents[0, count + 1 :], np.full(len(visible) - count - 1, -1)
    )
    if "verify_mask_visible" in golden:
        mask = np.concatenate([np.ones((count + 1, start), bool), visible[used, used]], axis=1)
        case.equal("verify_mask_visible", mask, golden["verify_mask_visible"])
    case.equal("first_child", links[0][0, used], golden["first_child"])
    case.equal("next_sibling", links[1][0, used], golden["next_sibling"])


@partial(jax.jit, static_argnames="budget")
def _build_with_views(tokens, log_probs, anchor, *, budget: int, row_budget, topk, depth_limit):
    """The tree, who sees whom as bool [1, N, N], and the two links a slot; one program a case."""
    tree = build_from_top(
        tokens, log_probs, anchor, budget=budget, row_budget=row_budget, topk=topk, depth_limit=depth_limit
    )
    return tree, unpack_mask(tree.ancestors, budget + 1), first_child_next_sibling(tree.parents)


_build = partial(jax.jit, static_argnames="budget")(build)


def _from_logits(case: Case, golden: Golden, facts: Mapping[str, Any]) -> None:
    anchor, limits = _inputs(golden)
    logits, count = golden["logits"], len(golden["node_token_ids"])
    budget = _size(int(golden["budget"]))
    tree = jax.device_get(_build(_roomy(logits, -np.inf), anchor, budget=budget, **limits))
    case.equal("from logits: count", tree.count[0], count)
    if int(tree.count[0]) != count or count == 0:
        return
    tokens, parents, depths = tree.tokens[0], tree.parents[0], tree.depths[0]
    scores = _scores(logits, tokens, parents, depths)[1 : count + 1]
    # A float32 log-probability is known to a few units in the last place of its logit.
    finite = np.abs(logits[np.isfinite(logits)])
    slack = NEAR_TIE + 4 * float(np.finfo(np.float32).eps) * float(finite.max(initial=0.0)) * len(logits)
    case.close("from logits: scores", scores, golden["node_scores"], slack)
    paths = {_path(slot, tokens, parents) for slot in range(count + 1)}
    case.equal("from logits: distinct prefixes", len(paths), count + 1)
    gaps = (facts.get("min_consecutive_score_gap", 0.0), facts.get("gap_to_best_excluded", 0.0))
    if any(gap is not None and gap < slack for gap in gaps):
        return
    case.equal("from logits: parents", parents[: count + 1], golden["parents"])
    case.equal("from logits: depths", depths[1 : count + 1], golden["node_depths"])
    if not facts["row_ties"]:
        case.equal("from logits: tokens", tokens[1 : count + 1], golden["node_token_ids"])


def _size(size: int) -> int:
    """The power of four, 16 or more, that holds ``size``; 0 for 0."""
    return 4 ** max(-(-(size - 1).bit_length() // 2), 2) if size else 0


def _roomy(values: np.ndarray, nothing: float) -> np.ndarray:
    """[D, C] as one row of few sizes, with ``nothing`` after what there is: cases share programs, and a tree
    has its own size as a limit, as the decoder's rows have.
    """
    room = [(0, _size(size) - size) for size in values.shape]
    return np.pad(values, room, constant_values=nothing)[None]


def _inputs(golden: Golden) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The anchor, and the case's sizes as limits."""
    depth, vocabulary = golden["logits"].shape
    limits = {"row_budget": int(golden["budget"]), "topk": vocabulary, "depth_limit": depth}
    return golden["root_token_id"].reshape(1), {
        name: np.array([limit], np.int32) for name, limit in limits.items()
    }


def _scores(logits: np.ndarray, tokens: np.ndarray, parents: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Sum of float64 log-probabilities from the root, for every slot; parents come before their children."""
    wide = logits.astype(np.float64)
    peak = wide.max(axis=-1, keepdims=True)
    log_probs = wide - peak - np.log(np.exp(wide - peak).sum(axis=-1, keepdims=True))
    scores = np.zeros(len(tokens))
    for slot in range(1, len(tokens)):
        if parents[slot] >= 0:
            scores[slot] = scores[parents[slot]] + log_probs[depths[slot] - 1, tokens[slot]]
    return scores


def _path(slot: int, tokens: np.ndarray, parents: np.ndarray) -> tuple[int, ...]:
    """Tokens from the root to a slot, the root's left out."""
    return () if slot == 0 else (*_path(int(parents[slot]), tokens, parents), int(tokens[slot]))


def tree_follow(folder: Path) -> Cases:
    """The accepted slots, their tokens and the bonus token, exactly; and the tree's links."""
    for path in sorted(folder.glob("*.npz")):

        def body(case: Case, path: Path = path) -> None:
            golden = read_arrays(path)
            parents, depths = golden["parents"], golden["node_depths"]
            slots, deepest = len(parents), padded(int(depths.max(initial=0)))
            tokens, depths = (np.append([0], nodes)[None] for nodes in (golden["node_token_ids"], depths))
            walked, links = jax.device_get(
                _follow_with_links(
                    widen(tokens.astype(np.int32)),
                    widen(parents[None], -1),
                    widen(depths.astype(np.int32)),
                    np.array([slots - 1], np.int32),
                    widen(golden["posterior"][None]),
                    depth=deepest,
                )
            )
            count = int(walked.count[0])
            case.equal("accepted_indices", walked.slots[0, :count], golden["accepted_indices"])
            case.equal("accepted_tokens", walked.tokens[0, : count - 1], golden["accepted_tokens"])
            case.equal("bonus_token", walked.tokens[0, count - 1], golden["bonus_token"])
            case.equal("first_child", links[0][0, :slots], golden["first_child"])
            case.equal("next_sibling", links[1][0, :slots], golden["next_sibling"])

        yield path.stem, body


@partial(jax.jit, static_argnames="depth")
def _follow_with_links(tokens, parents, depths, count, posterior, *, depth: int):
    tree = Tree(tokens, parents, depths, count, ancestor_bits(parents, depth))
    return follow(tree, posterior, depth), first_child_next_sibling(parents)


_commit = jax.jit(commit)


def kv_compact(folder: Path) -> Cases:
    """Keeping accepted slots, bit for bit: a cache up to ``past_length``, the rest a round's fresh slots."""
    for path in sorted(folder.glob("*.npz")):

        def body(case: Case, path: Path = path) -> None:
            golden = read_arrays(path)
            past, keep = int(golden["past_length"]), golden["keep_indices"]
            names = sorted(name.removesuffix("_in") for name in golden if name.endswith("_in"))
            window = {name: golden[f"{name}_in"].swapaxes(1, 2) for name in names}
            room = [(0, 0), (0, len(keep) + 1), (0, 0), (0, 0)]
            cache = {name: np.pad(leaf[:, :past], room) for name, leaf in window.items()}
            fresh = {name: leaf[:, past:] for name, leaf in window.items()}
            count, length = (np.array([value], np.int32) for value in (len(keep), past))
            kept = jax.device_get(_commit(cache, fresh, keep[None], count, length))
            for name in names:
                case.equal(
                    f"{name}_out", kept[name][:, : past + len(keep)].swapaxes(1, 2), golden[f"{name}_out"]
                )

        yield path.stem, body
