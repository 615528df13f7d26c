"""A measured cell as figures: medians with intervals, acceptance, exactness, a sign test against plain."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from jddtree import statistics
from jddtree.exactness import Exactness
from jddtree.load import Pair
from jddtree.sweep.measure import Batch, Repetitions, Run
from jddtree.sweep.traffic import bytes_a_round

RESAMPLES = 2000


def record(run: Run, plain: Run, pair: Pair, kinds: Sequence[str], bandwidth: float | None) -> dict[str, Any]:
    """A cell's line: all figures of `run`, beside ``plain`` of the same group. ``kinds``: of every prompt.
    ``bandwidth``: GB/s that the device can read; None leaves the share of it out.
    """
    last = run.repetitions[-1]
    found = statistics.acceptance([batch.results for batch in last])
    lengths = [count for batch in last for result in batch.results for count in result.acceptance_lengths]
    experts = found.experts if found and run.stepwise is None else []
    round_ms = _median(
        [1e3 * _sum(done, "seconds") / max(_sum(done, "rounds"), 1) for done in run.repetitions]
    )
    must_read = bytes_a_round(pair, run, experts)
    speeds = [
        _sum(done, "tokens") / _sum(done, "seconds") for done in run.repetitions if _sum(done, "seconds")
    ]
    plain_speeds = [
        _sum(done, "tokens") / _sum(done, "seconds") for done in plain.repetitions if _sum(done, "seconds")
    ]
    wins, losses = paired(run.repetitions, plain.repetitions)
    exact = exactness(run.checks, pair.dtype)
    return {
        "kind": "cell",
        "cell": asdict(run.cell),
        "name": run.cell.name,
        "texts": len(run.checks),
        "tokens": _sum(last, "tokens"),
        "tokens_per_second": _median(speeds),
        "interval": interval(speeds),
        "repetitions": speeds,
        "row_tokens_per_second": _median(
            [
                _sum(done, "tokens") / max(sum(sum(batch.row_seconds) for batch in done), 1e-12)
                for done in run.repetitions
            ]
        ),
        "times_plain": _median(speeds) / _median(plain_speeds) if speeds and plain_speeds else None,
        "sign_test": {"wins": wins, "losses": losses, "p_value": sign_test(wins, losses)},
        "committed_per_round": sum(lengths) / len(lengths) if lengths else None,
        "committed_by_kind": _by_kind(run, last, kinds),
        "round_ms": round_ms,
        "host_ms_per_round": _median(
            [1e3 * _sum(done, "host") / max(_sum(done, "rounds"), 1) for done in run.repetitions]
        ),
        "prefill_ms": _median([1e3 * _sum(done, "prefill") / len(done) for done in run.repetitions]),
        "compile_seconds": run.compile_seconds,
        "stage_ms": run.stages.times() if run.stages else {},
        "acceptance": None if found is None else asdict(found),
        "program_bytes": run.decoder.program_bytes,
        "peak_bytes": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
        "bytes_per_round": must_read,
        "percent_of_bandwidth": 100 * must_read / (1e6 * bandwidth * round_ms)
        if must_read and bandwidth and round_ms
        else None,
        "kernels": run.decoder.kernels,
        "exact": exact,
        "outputs": _outputs(run) if run.cell.method == "ar" else None,
    }


def exactness(checks: Sequence[Exactness], dtype: str) -> dict[str, Any]:
    """How many texts equal plain decoding's, and of the others which are ties within rounding and which are
    bugs. A cell with a bug is not ranked.
    """
    differing = [check for check in checks if not check.equal]
    ties = [check.gap for check in differing if check.is_tie(dtype)]
    return {
        "equal": len(checks) - len(differing),
        "ties": len(ties),
        "bugs": len(differing) - len(ties),
        "largest_tie_gap": max((gap for gap in ties if gap is not None), default=None),
        "first_bug": next((check.verdict(dtype) for check in differing if not check.is_tie(dtype)), None),
    }


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Bootstrap interval (95 %, percentiles) of the median, always from the same random numbers."""
    if not values:
        return None
    drawn = np.random.default_rng(0).choice(np.array(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)


def paired(ours: Repetitions, plain: Repetitions) -> tuple[int, int]:
    """In how many pairs (batch, repetition) this cell took fewer seconds a token than plain decoding, and in
    how many more. At concurrency 1 a batch is a prompt.
    """
    wins = losses = 0
    for batches, references in zip(ours, plain, strict=False):
        for mine, other in zip(batches, references, strict=True):
            a, b = mine.seconds_a_token, other.seconds_a_token
            if a is not None and b is not None:
                wins, losses = wins + (a < b), losses + (a > b)
    return wins, losses


def sign_test(wins: int, losses: int) -> float:
    """Exact one-sided p-value: so many wins or more, if wins and losses were equally likely."""
    pairs = wins + losses
    return sum(math.comb(pairs, count) for count in range(wins, pairs + 1)) / 2**pairs


def _sum(batches: Sequence[Batch], name: str) -> Any:
    return sum(getattr(batch, name) for batch in batches)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else 0.0


def _by_kind(run: Run, batches: Sequence[Batch], kinds: Sequence[str]) -> dict[str, float]:
    """Committed tokens a round, of each kind of prompt."""
    lengths: dict[str, list[int]] = {}
    for problems, batch in zip(run.problems, batches, strict=True):
        for problem, result in zip(problems, batch.results, strict=True):
            lengths.setdefault(kinds[problem], []).extend(result.acceptance_lengths)
    return {kind: sum(counts) / len(counts) for kind, counts in lengths.items() if counts}


def _outputs(run: Run) -> list[dict[str, Any]]:
    """Plain decoding's texts, each prompt once, so that two sweeps can be compared."""
    found: dict[int, dict[str, Any]] = {}
    for problems, batch in zip(run.problems, run.repetitions[0], strict=True):
        for problem, result in zip(problems, batch.results, strict=True):
            found.setdefault(problem, {"output_ids": result.output_ids, "margins": result.margins})
    return [found[problem] for problem in sorted(found)]
