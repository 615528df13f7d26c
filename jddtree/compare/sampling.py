"""``python -m jddtree.compare sampling``: drawn texts against the target's exact distribution.

The distribution of the first few tokens is worked out apart from the decoder: every prefix goes through the
target by itself, without a cache, and temperature and cuts are applied in float64. Texts drawn by the shipped
decoder, each with its own seed, are then tested against it with Pearson's chi-square. No token ends a text.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int, Int32

from jddtree.command import json_writer, say
from jddtree.decoder import Decoder, Task, check_prompt
from jddtree.engine import DEFAULT_BUDGET, Engine
from jddtree.errors import InputError
from jddtree.load import is_named
from jddtree.models.target import Target
from jddtree.prompts import as_ids, read_json_list
from jddtree.sampling import GREEDY, GREEDY_BELOW, Mode, Policy, Sample
from jddtree.state import Options
from pallas_kernels.tree_attention.api import causal_mask

FAILS_BELOW = 1e-4
"""A p-value under this fails the check."""

EXPECTED = 5.0
"""Texts expected fewer times than this are pooled: the chi-square law is not theirs."""

PREFIXES, TEXTS = 10_000, 2_000_000
"""Most prefixes that are run, and most texts that are told apart."""

BATCH = 64
"""Prefixes in one pass."""

LONG, LONG_ROWS = 32, 32
"""Tokens of a text, and texts, over which committed tokens a round are averaged."""


@dataclass(frozen=True)
class Law:
    """The texts that can be drawn, in order of their ids, and their probabilities."""

    texts: Int32[np.ndarray, "C L"]
    probabilities: Float64[np.ndarray, " C"]


@dataclass(frozen=True)
class Fit:
    """A chi-square test. cells: after pooling. degrees: cells - 1. outside: draws that cannot be drawn."""

    statistic: float
    cells: int
    degrees: int
    p_value: float
    outside: int

    @property
    def passed(self) -> bool:
        """Whether the draws may come from the law."""
        return self.p_value >= FAILS_BELOW


def probabilities(logits: Float[np.ndarray, "C V"], policy: Sample) -> Float64[np.ndarray, "C V"]:
    """What `Sample` describes, step by step: temperature, top-k, top-p on what is left, min-p on what is
    left.
    """
    scaled = logits.astype(np.float64) / policy.temperature
    order = np.argsort(-scaled, axis=1, kind="stable")
    best_first = np.exp(np.take_along_axis(scaled, order, axis=1) - scaled.max(axis=1, keepdims=True))
    if policy.top_k is not None:
        best_first[:, policy.top_k :] = 0
    if policy.top_p < 1:
        share = best_first / best_first.sum(axis=1, keepdims=True)
        best_first[np.cumsum(share, axis=1) - share >= policy.top_p] = 0
    best_first[best_first < policy.min_p * best_first[:, :1]] = 0
    result = np.empty_like(best_first)
    np.put_along_axis(result, order, best_first / best_first.sum(axis=1, keepdims=True), axis=1)
    return result


def exact(target: Target, prompt: Sequence[int], length: int, policy: Sample) -> Law:
    """The distribution of the ``length`` tokens after a prompt.

    Raises:
      InputError: there are too many texts, or a logit is not finite.
    """
    law = Law(np.zeros((1, 0), np.int32), np.ones((1,)))
    for _ in range(length):
        if len(law.texts) > PREFIXES:
            raise _too_many(f"{len(law.texts)} prefixes to run, more than {PREFIXES}")
        texts, chances = [], []
        for begin in range(0, len(law.texts), BATCH):
            prefixes = law.texts[begin : begin + BATCH]
            following = probabilities(_after(target, prompt, prefixes, min(BATCH, len(law.texts))), policy)
            following *= law.probabilities[begin : begin + BATCH, None]
            row, token = np.nonzero(following)
            texts.append(np.column_stack([prefixes[row], token.astype(np.int32)]))
            chances.append(following[row, token])
            if sum(map(len, texts)) > TEXTS:
                raise _too_many(f"more than {TEXTS} texts")
        law = Law(np.concatenate(texts), np.concatenate(chances))
    return law


def _too_many(what: str) -> InputError:
    return InputError(
        f"{what}: exact distributions are for small vocabularies; take a smaller --length or cut with --top-k"
    )


def _after(
    target: Target, prompt: Sequence[int], prefixes: Int32[np.ndarray, "C A"], rows: int
) -> Float[np.ndarray, "C V"]:
    """Logits after the prompt and each prefix. ``rows`` is the size of the pass, at least C."""
    ids = np.zeros((rows, len(prompt) + prefixes.shape[1]), np.int32)
    ids[: len(prefixes)] = [[*prompt, *prefix] for prefix in prefixes]
    logits = np.asarray(_last_logits(target, ids))[: len(prefixes)]
    if not np.isfinite(logits).all():
        raise InputError(f"the target's logits {prefixes.shape[1]} tokens after the prompt are not finite")
    return logits


@jax.jit
def _last_logits(target: Target, ids: Int[Array, "C T"]) -> Float[Array, "C V"]:
    """One causal pass with nothing cached."""
    rows, size = ids.shape
    positions = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), ids.shape)
    empty, nothing = target.new_cache(rows, 1, jnp.dtype(jnp.float32)), jnp.zeros((rows,), jnp.int32)
    passed = target(ids, positions, jnp.ones(ids.shape, bool), causal_mask(size), empty, nothing, ())
    return target.logits(passed.hidden[:, -1:])[:, 0]


def draw(
    decoder: Decoder, prompt: Sequence[int], length: int, policy: Sample, draws: int
) -> Int32[np.ndarray, "N L"]:
    """Texts with the seeds ``policy.seed``, ``policy.seed`` + 1, ..., in batches of the decoder's rows.

    Raises:
      InputError: a text met a logit that is not finite.
    """
    texts = []
    for begin in range(0, draws, decoder.rows):
        seeds = range(policy.seed + begin, policy.seed + min(begin + decoder.rows, draws))
        tasks = [Task(prompt, length, replace(policy, seed=seed), name=f"seed {seed}") for seed in seeds]
        *_, results = decoder.decode(tasks)
        for result in results:
            if result.error is not None:
                raise InputError(result.error)
            texts.append(result.output_ids)
    return np.array(texts, np.int32)


def chi_square(law: Law, texts: Int32[np.ndarray, "N L"]) -> Fit:
    """Test texts against a law. A text of probability 0 fails it at once.

    Texts that are expected fewer than `EXPECTED` times are pooled with their neighbours in order of ids, so
    that a pool mostly shares a prefix and a fault after that prefix stays visible.

    Raises:
      InputError: the texts are too few to make two cells, though the law has two texts.
    """
    counts = Counter(map(tuple, texts.tolist()))
    observed = np.array([counts.pop(tuple(text), 0) for text in law.texts.tolist()], np.float64)
    outside = sum(counts.values())
    expected = law.probabilities * len(texts)
    small = expected < EXPECTED
    # Every stretch of 2 x EXPECTED holds more than EXPECTED, as no small text is longer than that.
    pool = np.floor(np.cumsum(expected[small]) / (2 * EXPECTED)).astype(np.int64)
    cells = [
        np.concatenate([values[~small], np.bincount(pool, values[small])]) for values in (observed, expected)
    ]
    observed, expected = cells
    if expected[-1] < EXPECTED and len(expected) > 1:
        # The last stretch may be cut short: it joins the cell before it.
        observed, expected = (np.append(cell[:-2], cell[-2:].sum()) for cell in cells)
    degrees = len(expected) - 1
    if degrees == 0 and len(law.texts) > 1:
        raise InputError(
            f"{len(texts)} draws are too few to test {len(law.texts)} possible texts: raise --draws"
        )
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    return Fit(statistic, len(expected), degrees, 0.0 if outside else _tail(statistic, degrees), outside)


def _tail(statistic: float, degrees: int) -> float:
    """The probability that a chi-square variable is at least ``statistic``."""
    if degrees == 0:
        return 1.0
    with jax.enable_x64(True):
        half = np.float64(degrees / 2), np.float64(statistic / 2)
        return float(jax.scipy.special.gammaincc(*half))


def committed_per_round(
    decoder: Decoder, prompt: Sequence[int], length: int, policies: Sequence[Policy]
) -> float | None:
    """Mean tokens that a round commits, over a text of each policy; None if there are no rounds."""
    *_, results = decoder.decode([Task(prompt, length, policy) for policy in policies])
    lengths = [count for result in results for count in result.acceptance_lengths]
    return sum(lengths) / len(lengths) if lengths else None


def main(flags: argparse.Namespace) -> int:
    """Run the check, print what was found, and return 0, or 1 if the draws do not fit. Raises InputError."""
    policy, write_json = _policy(flags), json_writer(flags.json)
    prompt = as_ids(read_json_list(flags.prompt_ids, "--prompt-ids"), "--prompt-ids")
    engine = Engine.load(
        flags.target,
        flags.drafter,
        method=flags.method,
        budget=DEFAULT_BUDGET if flags.budget is None else flags.budget,
        rule=flags.rule,
        dtype="float32",
        say=say,
    )
    target = engine.pair.target
    limit = target.config.max_position
    check_prompt(prompt, target.config.vocab_size, limit, "--prompt-ids")
    if len(prompt) + flags.length > limit:
        raise InputError(f"{len(prompt)} prompt tokens and {flags.length} more exceed the context of {limit}")

    begin = time.perf_counter()
    law = exact(target, prompt, flags.length, policy)
    say(f"{len(law.texts)} possible texts, {time.perf_counter() - begin:.1f} s")
    new = max(flags.length, min(LONG, limit - len(prompt)))
    decoder = Decoder(
        target,
        engine.pair.drafter,
        engine.method,
        rows=min(flags.rows, flags.draws),
        slots=len(prompt) + new,
        dtype=jnp.dtype(jnp.float32),
        options=Options(Mode.of([policy]), flags.rule),
    )
    begin = time.perf_counter()
    texts = draw(decoder, prompt, flags.length, policy, flags.draws)
    seconds = time.perf_counter() - begin
    say(f"{flags.draws} draws, {seconds:.1f} s")
    fit = chi_square(law, texts)
    sampled = [
        replace(policy, seed=policy.seed + row) for row in range(min(decoder.rows, LONG_ROWS, flags.draws))
    ]
    report = {
        "prompt_ids": prompt,
        "length": flags.length,
        "draws": flags.draws,
        "method": engine.method.name,
        "budget": engine.method.budget,
        "rule": flags.rule,
        **asdict(policy),
        "texts": len(law.texts),
        **asdict(fit),
        "committed_per_round": committed_per_round(decoder, prompt, new, sampled),
        "committed_per_round_greedy": committed_per_round(decoder, prompt, new, [GREEDY]),
        "draw_seconds": seconds,
        "passed": fit.passed,
    }
    write_json(report)
    if flags.json != "-":
        _show(report)
    return 0 if fit.passed else 1


def _policy(flags: argparse.Namespace) -> Sample:
    """The policy that the flags ask for, and the flags' own ranges. Raises InputError."""
    for name in ("draws", "length", "rows"):
        if getattr(flags, name) < 1:
            raise InputError(f"--{name} must be 1 or more, not {getattr(flags, name)}")
    if flags.budget is not None and flags.method != "tree":
        raise InputError(f"--budget belongs to --method tree, not to {flags.method}")
    if flags.drafter is None and flags.method != "ar" and not is_named(flags.target):
        raise InputError(f"--method {flags.method} needs the target's --drafter")
    policy = Sample(flags.temperature, flags.top_k, flags.top_p, flags.min_p, flags.seed)
    if flags.temperature < GREEDY_BELOW:
        raise InputError(f"--temperature must be at least {GREEDY_BELOW:g}: nothing is sampled below it")
    if flags.seed + flags.draws > 2**32:
        raise InputError(f"--seed {flags.seed} leaves no room for {flags.draws} seeds of 32 bits")
    return policy


def _show(report: dict) -> None:
    print(
        f"{report['draws']} draws of {report['length']} tokens, method {report['method']}, "
        f"budget {report['budget']}, rule {report['rule']}\n"
        f"chi-square {report['statistic']:.1f}, {report['degrees']} degrees of freedom, "
        f"{report['cells']} cells of {report['texts']} texts, {report['outside']} draws outside them\n"
        f"p-value {report['p_value']:.3g} (fails under {FAILS_BELOW:g})"
    )
    if report["committed_per_round"] is not None:
        print(
            f"committed tokens a round: {report['committed_per_round']:.2f} at temperature "
            f"{report['temperature']:g}, {report['committed_per_round_greedy']:.2f} at temperature 0"
        )
    print("passed" if report["passed"] else "FAILED")
