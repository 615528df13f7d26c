"""What speculation did: acceptance by depth and by child rank, wasted nodes, experts read, stage times."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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


def acceptance(batches: Sequence[Sequence[Generation]]) -> Acceptance | None:
    """Of the rows of some batches. None if there were no rounds."""
    rounds = [entry for results in batches for result in results for entry in result.trace]
    if not rounds:
        return None
    accepted = [len(entry["accepted"]) - 1 for entry in rounds]
    nodes = [len(entry["tokens"]) - 1 for entry in rounds]
    ranks = [rank for entry in rounds for rank in _ranks(entry)]
    # Rows start together, and each holds what its rounds read for all rows: the longest row holds it all.
    experts = [
        layers for results in batches for layers in max((result.experts for result in results), key=len)
    ]
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


class Stages:
    """The stages of a round as programs of their own, compiled now, to be timed later."""

    def __init__(self, decoder: Decoder, task: Task):
        """``task``: its prompt fills every row."""
        self._decoder, self._tasks = decoder, [task] * decoder.rows
        self._programs: list[tuple[str, Callable, tuple[str, ...], tuple[str, ...]]] = []
        method, options = decoder.method, decoder.options
        values, models = self._start()
        shapes = jax.eval_shape(lambda: values)

        def add(stage: Callable, takes: tuple[str, ...], gives: tuple[str, ...], function: Callable) -> None:
            """Compile function(*takes), which returns ``gives``."""
            arguments = [shapes[name] for name in takes]
            compiled = jax.jit(function).lower(*arguments).compile(decoder.compiler_options)
            shapes.update(zip(gives, jax.eval_shape(function, *arguments), strict=True))
            self._programs.append((stage.__name__, compiled, takes, gives))

        def draft(weights, state):
            target, drafter = jax.tree.unflatten(models, weights)
            return decode.draft(target, drafter, state, method)

        def build(weights, request, state, logits):
            return (decode.build(jax.tree.unflatten(models, weights)[1], request, state, logits, method),)

        def verify(weights, state, tree):
            target, drafter = jax.tree.unflatten(models, weights)
            return decode.verify(target, drafter, state, tree, method)

        def accept(request, state, tree, logits):
            active = jnp.ones((decoder.rows,), bool)
            return (
                decode.accept(request, state, tree, logits, state.lengths, active, method.depth, options),
            )

        def commit(state, cache, passed, outcome):
            return (decode.commit(state, cache, passed, outcome),)

        if "tree" not in values:
            add(decode.draft, ("weights", "state"), ("drafter cache", "draft logits"), draft)
            add(decode.build, ("weights", "request", "state", "draft logits"), ("tree",), build)
        add(decode.verify, ("weights", "state", "tree"), ("pass", "logits"), verify)
        add(decode.accept, ("request", "state", "tree", "logits"), ("outcome",), accept)
        add(decode.commit, ("state", "drafter cache", "pass", "outcome"), ("next state",), commit)

    def times(self, repetitions: int = 10) -> dict[str, float]:
        """Median milliseconds of each stage, run apart on the state after the prefill.

        A stage alone pays for its own dispatch, which the one program of a real round does not.
        """
        (values, _), times = self._start(), {}
        for name, program, takes, gives in self._programs:
            arguments = [values[taken] for taken in takes]
            values.update(zip(gives, jax.block_until_ready(program(*arguments)), strict=True))
            spent = []
            for _ in range(repetitions):
                began = time.perf_counter()
                jax.block_until_ready(program(*arguments))
                spent.append(1e3 * (time.perf_counter() - began))
            times[name] = statistics.median(spent)
        return times

    def _start(self) -> tuple[dict[str, Any], Any]:
        """What the first stage finds, and how the weights in it make the models."""
        target, drafter, request, state = self._decoder.prefilled(self._tasks)
        # Flattened once: a compiled call should not walk the modules again.
        weights, models = jax.tree.flatten((target, drafter))
        values = {"weights": weights, "request": request, "state": state}
        if drafter is None or not self._decoder.method.depth:
            nothing = decode.no_tree(state, self._decoder.method)
            values |= {"drafter cache": state.drafter_cache, "tree": nothing}
        return values, models


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
    if stages:
        lines.append("stages run apart, ms: " + ", ".join(f"{name} {ms:.2f}" for name, ms in stages.items()))
    return lines


def _percent(shares: Sequence[float]) -> str:
    return " ".join(f"{100 * share:.0f}%" for share in shares) or "none"
