"""What speculation did: acceptance by depth and by child rank, wasted nodes, experts read, stage times."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jddtree import decode
from jddtree.decoder import Decoder, Task
from jddtree.finish import Generation


@dataclass(frozen=True)
class Acceptance:
    """Over all rounds of all rows.

    by_depth: share of rounds whose path reached depth 1, 2, ... by_rank: share of accepted nodes that were
    their parent's best, second best, ... child. nodes: verified nodes a round, the root not counted. wasted:
    nodes a round that were not accepted. experts: distinct experts a verify read, mean over rounds, for every
    MoE layer.
    """

    rounds: int
    committed_per_round: float
    by_depth: list[float]
    by_rank: list[float]
    nodes: float
    wasted: float
    experts: list[float]


def acceptance(results: Sequence[Generation]) -> Acceptance | None:
    """Of the rows of one batch. None if there were no rounds."""
    rounds = [entry for result in results for entry in result.trace]
    if not rounds:
        return None
    accepted = [len(entry["accepted"]) - 1 for entry in rounds]
    nodes = [len(entry["tokens"]) - 1 for entry in rounds]
    ranks = [rank for entry in rounds for rank in _ranks(entry)]
    # Rows start together, and each holds what its rounds read for all rows: the longest row holds it all.
    experts = max((result.experts for result in results), key=len)
    return Acceptance(
        rounds=len(rounds),
        committed_per_round=statistics.fmean(accepted) + 1,
        by_depth=[_share(a >= depth for a in accepted) for depth in range(1, max(accepted) + 1)],
        by_rank=[_share(r == rank for r in ranks) for rank in range(max(ranks) + 1)] if ranks else [],
        nodes=statistics.fmean(nodes),
        wasted=statistics.fmean(n - a for n, a in zip(nodes, accepted, strict=True)),
        experts=[statistics.fmean(layer) for layer in zip(*experts, strict=True)],
    )


def _ranks(entry: dict[str, list[int]]) -> list[int]:
    """For every accepted node, how many of its siblings were selected before it."""
    parents = entry["parents"]
    return [parents[1:slot].count(parents[slot]) for slot in entry["accepted"][1:]]


def _share(flags: Any) -> float:
    return statistics.fmean(map(float, flags))


def stage_times(decoder: Decoder, task: Task, repetitions: int = 10) -> dict[str, float]:
    """Median milliseconds of each stage of a round, run apart on the state after the prefill of ``task``.

    A stage alone pays for its own dispatch, which the one program of a real round does not.
    """
    method, options = decoder.method, decoder.options
    target, drafter, request, state = decoder.prefilled(task)
    times: dict[str, float] = {}

    def timed(stage: Callable, function: Callable, *arguments: Any) -> Any:
        compiled = jax.jit(function)
        result = jax.block_until_ready(compiled(*arguments))
        spent = []
        for _ in range(repetitions):
            began = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
            spent.append(1e3 * (time.perf_counter() - began))
        times[stage.__name__] = statistics.median(spent)
        return result

    if drafter is None or not method.depth:
        drafter_cache, candidates = state.drafter_cache, decode.no_tree(state, method)
    else:
        drafter_cache, logits = timed(
            decode.draft, partial(decode.draft, method=method), target, drafter, state
        )
        candidates = timed(
            decode.build, partial(decode.build, drafter, method=method), request, state, logits
        )
    passed, logits = timed(
        decode.verify,
        lambda target, state, candidates: decode.verify(target, drafter, state, candidates, method),
        target,
        state,
        candidates,
    )
    active = jnp.ones(state.reason.shape, bool)
    outcome = timed(
        decode.accept,
        lambda request, state, candidates, logits: decode.accept(
            request, state, candidates, logits, state.lengths, active, method.depth, options
        ),
        request,
        state,
        candidates,
        logits,
    )
    timed(decode.commit, decode.commit, state, drafter_cache, passed, outcome)
    return times


def as_json(found: Acceptance | None, stages: dict[str, float]) -> dict[str, Any]:
    """For a JSON record."""
    return {"acceptance": None if found is None else asdict(found), "stage_ms": stages}


def as_text(found: Acceptance | None, stages: dict[str, float]) -> list[str]:
    """Lines for the user."""
    lines = []
    if found is not None:
        lines.append(
            f"rounds {found.rounds}, committed a round {found.committed_per_round:.2f}, "
            f"nodes a round {found.nodes:.1f}, of them wasted {found.wasted:.1f}"
        )
        lines.append("rounds that reached depth 1, 2, ...: " + _percent(found.by_depth))
        lines.append("accepted nodes that were the 1st, 2nd, ... child: " + _percent(found.by_rank))
        if found.experts:
            lines.append(
                "distinct experts a verify, each MoE layer: " + " ".join(f"{n:.1f}" for n in found.experts)
            )
    lines.append("stages run apart, ms: " + ", ".join(f"{name} {ms:.2f}" for name, ms in stages.items()))
    return lines


def _percent(shares: Sequence[float]) -> str:
    return " ".join(f"{100 * share:.0f}%" for share in shares) or "none"
