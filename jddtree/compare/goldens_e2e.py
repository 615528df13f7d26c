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
from jddtree.compare.weights import FLOAT32, reference_pair
from jddtree.decoder import Decoder, Prefills, Task
from jddtree.finish import Generation
from jddtree.load import Pair
from jddtree.models.dflash import DFlash
from jddtree.models.target import Cache, Target
from jddtree.state import Method
from jddtree.tree import Tree, build, spine
from pallas_kernels.tree_attention.api import causal_mask, pack_mask

Run = Mapping[str, Any]

LIMIT = 2e-4
"""Absolute, float32: logits, features and drafter outputs of a traced round."""

NEAR_TIES = 1.0
"""Rounds of a run whose tree may differ from the reference's, by a near tie of scores."""

SWAPPED = 2.0
"""Prefixes by which such a tree may differ: a near tie puts one in and one out."""

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
    if name == "ar":
        return Method.plain()
    return Method.chain(block_size) if budget is None else Method.tree(block_size, budget)


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
def _target_pass(target: Target, ids, positions, mask, committed: Cache, lengths, *, taps: tuple[int, ...]):
    passed = target(ids, positions, jnp.ones(ids.shape, bool), mask, committed, lengths, taps)
    return passed, target.logits(passed.hidden)


@jax.jit
def _extend(drafter: DFlash, context: Cache, features, positions, count, length) -> Cache:
    return append(context, drafter.context(features, positions), count, length)


@jax.jit
def _draft(target: Target, drafter: DFlash, embeddings, positions, context: Cache, lengths):
    hidden, _ = drafter.block(embeddings, positions, context, lengths)
    return hidden, target.logits(hidden)


def _check_trace(case: Case, pair: Pair, golden: Mapping[str, np.ndarray]) -> None:
    """Every stage from the reference's own inputs, over caches that this package committed."""
    target, drafter = pair.target, pair.drafter
    assert isinstance(drafter, DFlash)
    rounds, lengths_of = int(golden["num_traced_rounds"]), golden["acceptance_lengths"]
    prompt = golden["prefill_input_ids"].shape[1]
    slots = prompt + int(lengths_of[:rounds].sum())
    committed, context = target.new_cache(1, slots, FLOAT32), drafter.new_cache(1, slots, FLOAT32)
    at = jnp.zeros((1,), jnp.int32)
    run = partial(_target_pass, target, taps=drafter.target_layers)

    ids, positions = golden["prefill_input_ids"], golden["prefill_position_ids"]
    passed, logits = run(ids, positions, causal_mask(prompt), committed, at)
    case.close("prefill logits", logits[:, -1:], golden["prefill_logits"], LIMIT)
    case.close("prefill features", passed.features, golden["prefill_features"], LIMIT)
    committed = _append(committed, passed.fresh, at + prompt, at)
    features, known, at = passed.features, at, at + prompt

    distances: list[float] = []
    for index in range(rounds):
        name, inputs = f"round {index}", {k: golden[f"r{index}_{k}"] for k in DRAFT_INPUTS}
        new = inputs["target_hidden"].shape[1]
        case.close(f"{name} target_hidden", features, inputs["target_hidden"], LIMIT)
        drafted = inputs["draft_position_ids"]
        context = _extend(drafter, context, inputs["target_hidden"], drafted[:, :new], at - known, known)
        block = inputs["noise_embedding"].shape[1]
        ids = golden[f"r{index}_verify_input_ids"]
        anchor = np.append(ids[0, :1], np.full(block - 1, drafter.config.mask_token_id, np.int32))[None]
        case.close(
            f"{name} noise_embedding", target.embed(jnp.asarray(anchor)), inputs["noise_embedding"], LIMIT
        )
        hidden, logits = _draft(target, drafter, inputs["noise_embedding"], drafted[:, new:], context, at)
        case.close(f"{name} draft_hidden", hidden, golden[f"r{index}_draft_hidden"], LIMIT)
        case.close(f"{name} draft_logits", logits, golden[f"r{index}_draft_logits"], LIMIT)

        shape = _traced_tree(golden, index)
        if block == drafter.block_size:
            own = _own_tree(
                golden[f"r{index}_draft_logits"][:, 1:], shape.tokens[:, 0], int(golden["budget"])
            )
            expected = _prefixes(shape.tokens[0].tolist(), shape.parents[0].tolist())
            width = int(own.count[0]) + 1
            actual = _prefixes(own.tokens[0, :width].tolist(), own.parents[0, :width].tolist())
            distances.append(_distance(actual, expected))

        positions = golden[f"r{index}_verify_position_ids"]
        passed, logits = run(ids, positions, shape.ancestors, committed, at)
        case.close(f"{name} verify_logits", logits, golden[f"r{index}_verify_logits"], LIMIT)
        case.close(f"{name} verify_features", passed.features, golden[f"r{index}_verify_features"], LIMIT)
        path = _follow(shape, jnp.argmax(logits, axis=-1).astype(jnp.int32), block - 1)
        count = int(path.count[0])
        case.equal(f"{name} accepted", count, lengths_of[index])
        committed = _commit(committed, passed.fresh, path.slots, path.count, at)
        features = passed.features[:, path.slots[0, :count]]
        known, at = at, at + count
    _check_trees(case, distances)


def _traced_tree(golden: Mapping[str, np.ndarray], index: int) -> Tree:
    """The verified tree: of every slot, the parent is the last slot before it that it sees."""
    ids = jnp.asarray(golden[f"r{index}_verify_input_ids"])
    slots = ids.shape[1]
    if f"r{index}_verify_visible" in golden:
        visible = golden[f"r{index}_verify_visible"][:, -slots:]
        before = np.tril(visible, -1)
        parents = np.where(before.any(axis=1), slots - 1 - before[:, ::-1].argmax(axis=1), -1)
    else:
        visible, parents = np.tri(slots, dtype=bool), np.arange(slots) - 1
    return Tree(
        tokens=ids,
        parents=jnp.asarray(parents, jnp.int32)[None],
        depths=jnp.asarray(visible.sum(axis=1) - 1, jnp.int32)[None],
        count=jnp.array([slots - 1], jnp.int32),
        ancestors=pack_mask(visible[None]),
    )


_append = jax.jit(append)
_commit = jax.jit(commit)
_follow = jax.jit(follow, static_argnums=2)
_build = jax.jit(build, static_argnames="budget")


def _own_tree(logits: np.ndarray, anchor: jax.Array, budget: int) -> Tree:
    """The tree or, for a negative budget, the chain that this package makes of draft logits."""
    depth = jnp.array([logits.shape[1]], jnp.int32)
    if budget < 0:
        return spine(jnp.asarray(logits), anchor, depth_limit=depth)
    limits = {
        "row_budget": jnp.array([budget], jnp.int32),
        "topk": jnp.array([logits.shape[2]], jnp.int32),
        "depth_limit": depth,
    }
    return _build(logits, anchor, budget=budget, **limits)
