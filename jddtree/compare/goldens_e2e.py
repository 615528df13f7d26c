"""Reference data for whole generations, and for every stage of their first rounds."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jddtree.accept import follow
from jddtree.cache import append, commit
from jddtree.compare.checks import Case, Cases, read_arrays, read_facts
from jddtree.compare.padding import padded, widen, widen_mask
from jddtree.compare.weights import FLOAT32, reference_pair
from jddtree.decoder import Decoder, Prefills, Task
from jddtree.finish import Generation
from jddtree.load import Pair
from jddtree.models.dflash import DFlash
from jddtree.models.target import Cache, Target
from jddtree.state import Method
from jddtree.tree import Tree, build, spine
from pallas_kernels.tree_attention.api import causal_mask

Run = Mapping[str, Any]

LIMIT = 2e-4
"""Absolute, float32: logits, features and drafter outputs of a traced round."""

NEAR_TIES = 1.0
"""Rounds of a run whose tree may differ from the reference's, by a near tie of scores."""

SWAPPED = 2.0
"""Prefixes by which such a tree may differ: a near tie puts one in and one out."""

TREES = (16, 64, 256, 1024)
"""Budgets that are compiled."""

DRAFT_INPUTS = ("target_hidden", "noise_embedding", "draft_position_ids")


def generations(folder: Path) -> Cases:
    """A case is a run of ``runs.json`` or a trace file."""
    facts = read_facts(folder / "runs.json")
    pair = cache(lambda: reference_pair(folder))
    slots = max(len(facts["prompts"][run["prompt_index"]]) + run["max_new_tokens"] for run in facts["runs"])

    prefills = cache(lambda depth: Prefills())

    @cache
    def decoder(method: Method) -> Decoder:
        own = pair()
        return Decoder(
            own.target,
            own.drafter if method.depth else None,
            method,
            rows=1,
            slots=slots,
            dtype=FLOAT32,
            prefills=prefills(method.depth),
        )

    for run in facts["runs"]:

        def body(case: Case, run: Run = run) -> None:
            task = Task(
                facts["prompts"][run["prompt_index"]],
                max_new=run["max_new_tokens"],
                budget=run.get("budget"),
                stop_ids=run["stop_token_ids"] or (),
            )
            method = _method(run["method"], run.get("budget"), facts["block_size"])
            *_, rows = decoder(method).decode([task])
            _check_run(case, rows[0], run)

        budget = "" if run.get("budget") is None else f" {run['budget']}"
        yield f"prompt {run['prompt_index']} {run['method']}{budget}", body

    for path in sorted(folder.glob("trace_*.npz")):

        def body(case: Case, path: Path = path) -> None:
            _check_trace(case, pair(), read_arrays(path))

        yield path.stem, body


def _method(name: str, budget: int | None, block_size: int) -> Method:
    """A tree's slots come in few numbers, of which a run may use its own: runs share programs."""
    if name == "ar":
        return Method.plain()
    if budget is None:
        return Method.chain(block_size)
    return Method.tree(block_size, next((size for size in TREES if size >= budget), budget))


def _check_run(case: Case, generation: Generation, run: Run) -> None:
    case.equal("output_ids", generation.output_ids, run["output_ids"])
    if run["method"] == "ar":
        return
    rounds, whole = comparable_rounds(run)
    lengths = generation.acceptance_lengths
    case.equal(
        "acceptance_lengths", lengths if whole else lengths[:rounds], run["acceptance_lengths"][:rounds]
    )
    if "rounds" in run:
        pairs = zip(generation.trace[:rounds], run["rounds"][:rounds], strict=True)
        _check_trees(case, [_tree_distance(own, theirs) for own, theirs in pairs])


def comparable_rounds(run: Run) -> tuple[int, bool]:
    """How many of the reference's rounds this package must reproduce, and whether it runs no more than those.

    The reference may go on after 1 + the total has reached max_new_tokens, and looks at the prefill's token
    for a stop only after a round; its rounds with a truncated block, and all after them, are artefacts.
    """
    if run["output_ids"][0] in (run["stop_token_ids"] or ()):
        return 0, True
    total = 1
    for index, (length, truncated) in enumerate(
        zip(run["acceptance_lengths"], run["block_truncated"], strict=True)
    ):
        if total >= run["max_new_tokens"]:
            return index, True
        if truncated:
            return index, False
        total += length
    return len(run["acceptance_lengths"]), True


def _check_trees(case: Case, distances: Sequence[float]) -> None:
    """Trees equal the reference's node for node; in one round of a run, near ties may change one node."""
    case.close("trees, rounds that differ", sum(distance > 0 for distance in distances), 0, float(NEAR_TIES))
    case.close("trees, prefixes that differ", max(distances, default=0), 0, float(SWAPPED))


def _tree_distance(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """`_distance` of two rounds' trees; infinite where another path was accepted."""
    expected = _prefixes([0, *theirs["node_token_ids"]], theirs["parents"])
    actual = _prefixes([0, *own["tokens"][1:]], own["parents"])
    accepted = [actual[slot] for slot in own["accepted"]]
    same_path = accepted == [expected[slot] for slot in theirs["accepted_indices"]]
    return _distance(actual, expected) if same_path else np.inf


def _distance(actual: Sequence[tuple[int, ...]], expected: Sequence[tuple[int, ...]]) -> float:
    """How far two lists of nodes are apart: 0 if equal, 1 in another order, else the prefixes that only one
    has; infinite where the sizes differ.
    """
    if len(actual) != len(expected):
        return np.inf
    swapped = len(set(actual) ^ set(expected))
    return float(swapped or list(actual) != list(expected))


def _prefixes(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """The tokens from the root to every slot."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        paths.append((*paths[parent], token))
    return paths


@partial(jax.jit, static_argnames="taps")
def _target_pass(
    target: Target, ids, positions, valid, mask, committed: Cache, lengths, *, taps: tuple[int, ...]
):
    passed = target(ids, positions, valid, mask, committed, lengths, taps)
    logits = target.logits(passed.hidden)
    return logits, passed.features, passed.fresh, jnp.argmax(logits, axis=-1).astype(jnp.int32)


@jax.jit
def _draft(
    target: Target,
    drafter: DFlash,
    context: Cache,
    features,
    places,
    new,
    known,
    anchor,
    embeddings,
    positions,
):
    """A round's draft, after ``new`` tokens' features were added to ``known`` ones."""
    context = append(context, drafter.context(features, places), new, known)
    hidden, _ = drafter.block(embeddings, positions, context, known + new)
    return context, target.embed(anchor), hidden, target.logits(hidden)


def _check_trace(case: Case, pair: Pair, golden: Mapping[str, np.ndarray]) -> None:
    """Every stage from the reference's own inputs, over caches that this package committed."""
    target, drafter = pair.target, pair.drafter
    assert isinstance(drafter, DFlash)
    rounds, lengths_of = int(golden["num_traced_rounds"]), golden["acceptance_lengths"]
    prompt = golden["prefill_input_ids"].shape[1]
    slots = padded(prompt + int(lengths_of[:rounds].sum()))
    committed, context = target.new_cache(1, slots, FLOAT32), drafter.new_cache(1, slots, FLOAT32)
    at = np.zeros((1,), np.int32)

    def run(ids: np.ndarray, positions: np.ndarray, mask: jax.Array):
        """Logits and features of the slots; what all, padded ones too, cache; and their likeliest tokens."""
        inputs = widen(ids), widen(positions), widen(np.ones(ids.shape, bool))
        logits, features, fresh, best = _target_pass(
            target, *inputs, mask, committed, at, taps=drafter.target_layers
        )
        return *(np.asarray(value)[:, : ids.shape[1]] for value in (logits, features)), fresh, best

    ids, positions = golden["prefill_input_ids"], golden["prefill_position_ids"]
    logits, features, fresh, _ = run(ids, positions, causal_mask(padded(prompt)))
    case.close("prefill logits", logits[:, -1:], golden["prefill_logits"], LIMIT)
    case.close("prefill features", features, golden["prefill_features"], LIMIT)
    committed = _append(committed, fresh, at + np.int32(prompt), at)
    known, at = at, at + np.int32(prompt)

    distances: list[float] = []
    for index in range(rounds):
        name, inputs = f"round {index}", {k: golden[f"r{index}_{k}"] for k in DRAFT_INPUTS}
        new = inputs["target_hidden"].shape[1]
        case.close(f"{name} target_hidden", features, inputs["target_hidden"], LIMIT)
        drafted = inputs["draft_position_ids"]
        block = inputs["noise_embedding"].shape[1]
        ids = golden[f"r{index}_verify_input_ids"]
        anchor = np.append(ids[0, :1], np.full(block - 1, drafter.config.mask_token_id, np.int32))[None]
        context, embedded, hidden, logits = _draft(
            target,
            drafter,
            context,
            widen(inputs["target_hidden"]),
            widen(drafted[:, :new]),
            at - known,
            known,
            anchor,
            inputs["noise_embedding"],
            drafted[:, new:],
        )
        case.close(f"{name} noise_embedding", embedded, inputs["noise_embedding"], LIMIT)
        case.close(f"{name} draft_hidden", hidden, golden[f"r{index}_draft_hidden"], LIMIT)
        case.close(f"{name} draft_logits", logits, golden[f"r{index}_draft_logits"], LIMIT)

        shape = _traced_tree(golden, index)
        if block == drafter.block_size:
            drafts, budget = golden[f"r{index}_draft_logits"][:, 1:], int(golden["budget"])
            own = jax.device_get(_own_tree(drafts, ids[:, 0], budget))
            slots = ids.shape[1]
            expected = _prefixes(ids[0].tolist(), np.asarray(shape.parents)[0, :slots].tolist())
            width = int(own.count[0]) + 1
            actual = _prefixes(own.tokens[0, :width].tolist(), own.parents[0, :width].tolist())
            distances.append(_distance(actual, expected))

        positions = golden[f"r{index}_verify_position_ids"]
        logits, features, fresh, best = run(ids, positions, shape.ancestors)
        case.close(f"{name} verify_logits", logits, golden[f"r{index}_verify_logits"], LIMIT)
        case.close(f"{name} verify_features", features, golden[f"r{index}_verify_features"], LIMIT)
        path = jax.device_get(_follow(shape, best, block - 1))
        count = path.count[0]
        case.equal(f"{name} accepted", count, lengths_of[index])
        committed = _commit(committed, fresh, path.slots, path.count, at)
        features = features[:, path.slots[0, :count]]
        known, at = at, at + count
    _check_trees(case, distances)


def _traced_tree(golden: Mapping[str, np.ndarray], index: int) -> Tree:
    """The verified tree, padded: of every slot, the parent is the last slot before it that it sees."""
    ids = golden[f"r{index}_verify_input_ids"]
    slots = ids.shape[1]
    if f"r{index}_verify_visible" in golden:
        visible = golden[f"r{index}_verify_visible"][:, -slots:]
        before = np.tril(visible, -1)
        parents = np.where(before.any(axis=1), slots - 1 - before[:, ::-1].argmax(axis=1), -1)
    else:
        visible, parents = np.tri(slots, dtype=bool), np.arange(slots) - 1
    return Tree(
        tokens=jnp.asarray(widen(ids)),
        parents=jnp.asarray(widen(parents.astype(np.int32)[None], -1)),
        depths=jnp.asarray(widen((visible.sum(axis=1) - 1).astype(np.int32)[None])),
        count=jnp.array([slots - 1], jnp.int32),
        ancestors=widen_mask(visible[None]),
    )


_append = jax.jit(append)
_commit = jax.jit(commit)
_follow = jax.jit(follow, static_argnums=2)
_build = jax.jit(build, static_argnames="budget")
_spine = jax.jit(spine)


def _own_tree(logits: np.ndarray, anchor: np.ndarray, budget: int) -> Tree:
    """The tree or, for a negative budget, the chain that this package makes of draft logits."""
    depth = np.array([logits.shape[1]], np.int32)
    if budget < 0:
        return _spine(logits, anchor, depth_limit=depth)
    limits = {
        "row_budget": np.array([budget], np.int32),
        "topk": np.array([logits.shape[2]], np.int32),
        "depth_limit": depth,
    }
    return _build(logits, anchor, budget=budget, **limits)
