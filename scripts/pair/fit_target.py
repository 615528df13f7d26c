"""Trains the target, and measures its loss by kind of text."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jddtree.config import KimiK2Config
from jddtree.errors import InputError
from scripts.pair import muon, resume
from scripts.pair.blend import Blend
from scripts.pair.documents import KINDS, Documents, Special, pack
from scripts.pair.target import Params, cross_entropy, init_target, next_logits, rounded, unlikelihood
from scripts.pair.unlikelihood import Own, Prompts, write_own

BALANCE = 5e-3  # step of the router's correction bias, falling with the learning rate
OWN_ONE_IN = 4  # rows of own texts in a step against loops: one to so many rows of the corpus
REPORT_EVERY = 50
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How long and how to train.

    steps: batches of ``batch`` rows, at most at learning rate ``rate``. The last ``rounds`` times
    ``round_steps`` of them also work against loops: a round writes ``texts`` texts of ``slots`` ids, and
    their unlikelihood counts ``weight`` times. The state is saved every ``save_every`` steps and before each
    round.
    """

    steps: int
    batch: int
    rate: float
    seed: int
    rounds: int
    round_steps: int
    weight: float
    texts: int
    slots: int
    save_every: int

    def __post_init__(self) -> None:
        if self.rounds * self.round_steps > self.steps:
            raise InputError(
                f"{self.rounds} rounds of {self.round_steps} steps against loops are more than all "
                f"{self.steps} steps: lower --unlike-rounds or --unlike-steps (0 rounds: none)"
            )

    @property
    def first_round(self) -> int:
        """The step at which the first round begins."""
        return self.steps - self.rounds * self.round_steps

    def begins_round(self, step: int) -> bool:
        return self.first_round <= step < self.steps and (step - self.first_round) % self.round_steps == 0

    def saves(self, step: int) -> bool:
        """Whether the state is saved after ``step`` steps. Inside a round it is not: the round's texts would
        be lost.
        """
        ordinary = step < self.first_round and step % self.save_every == 0
        return step > 0 and (ordinary or self.begins_round(step) or step == self.steps)


@partial(jax.jit, static_argnames=("config", "cudnn", "dtype"), donate_argnames=("params", "moments"))
def train_step(config, params, moments, tokens, positions, own, rate, balance, weight, cudnn, dtype):
    """One step on rows of the corpus and, unless ``own`` is None, on (tokens, positions, marks) of own texts.

    Returns parameters, moments, the corpus's loss, the own texts' unlikelihood of marked tokens (both in nats
    a token of the text; 0 without own texts) and the busiest expert's load over the mean.
    """
    rows = len(tokens)
    if own is not None:
        tokens, positions = jnp.concatenate([tokens, own[0]]), jnp.concatenate([positions, own[1]])

    def loss_of(params):
        logits, counts, loads = next_logits(config, rounded(params, dtype), tokens, positions, cudnn)
        losses = cross_entropy(logits[:rows], tokens[:rows, 1:])
        loss = jnp.sum(losses * counts[:rows]) / jnp.maximum(jnp.sum(counts[:rows]), 1)
        again = jnp.float32(0)
        if own is not None:
            # Over all of their tokens, so that it fades as repeats become rare.
            total = jnp.sum(unlikelihood(logits[rows:], own[0][:, 1:]) * own[2][:, 1:])
            again = total / jnp.maximum(jnp.sum(counts[rows:]), 1)
        return loss + weight * again, (loss, again, loads)

    (_, (loss, again, loads)), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    params, moments = muon.update(params, grads, moments, rate)
    mean = jnp.mean(loads, axis=-1, keepdims=True)
    biases = sorted(
        (n for n in params if n.endswith("e_score_correction_bias")), key=lambda n: int(n.split(".")[2])
    )
    for name, load, average in zip(biases, loads, mean, strict=True):
        params[name] = params[name] + balance * jnp.sign(average - load)
    return params, moments, loss, again, jnp.max(loads / mean)


def fit_target(
    config: KimiK2Config,
    blend: Blend,
    train: Prompts,
    valid: Documents,
    plan: Plan,
    *,
    cudnn: bool,
    dtype: jnp.dtype,
    state: Path,
    say: Say,
) -> tuple[Params, dict]:
    """Train from scratch, or go on from ``state``, computing in ``dtype``. Returns float32 parameters and a
    report: loss by kind at the first round against loops, and the share of distinct grams in greedy answers
    to the prompts of ``valid`` at every round's beginning and at the end.

    Routing stays even through the correction bias alone (no auxiliary loss): after each step it moves by a
    fixed amount towards the mean load (arXiv 2408.15664).

    Raises:
      InputError: ``state`` is of a run with other flags or data; too few rows.
    """
    special, width = train.form.special, blend.rows.tokens.shape[1]
    if plan.rounds and plan.slots > width:
        raise InputError(f"--unlike-slots {plan.slots} must be at most --width {width}")
    held = Prompts(valid, train.form, train.longest)
    params = init_target(config, plan.seed)
    moments = muon.start(params)
    say(
        f"target: {sum(v.size for v in params.values()) / 1e6:.1f} M parameters, {len(blend.rows)} rows of "
        f"{width}"
    )
    facts = asdict(plan) | {"shares": blend.shares, "dtype": str(dtype), "config": repr(config)}
    mark = resume.fingerprint(facts, blend.rows.tokens)
    start = 0
    if (found := resume.load(state, mark, (params, moments))) is not None:
        start, (params, moments) = found
        say(f"target: going on after step {start}")
    report: dict = {"distinct": {}}
    own: Own | None = None

    def write(step: int) -> Own:
        texts, figures = write_own(
            config,
            rounded(params, dtype),
            train,
            held,
            texts=plan.texts,
            slots=plan.slots,
            width=width,
            seed=plan.seed + step,
            say=say,
        )
        report["distinct"][step] = figures
        return texts

    batches = blend.batches(plan.batch, plan.seed, start)
    begin = clock = time.time()
    reported = start
    for i in range(start, plan.steps):
        if plan.begins_round(i) and held.by_kind and train.by_kind:
            own = write(i)
            if i == plan.first_round:
                report["loss_before_rounds"] = loss_by_kind(
                    config, rounded(params, dtype), valid, special, width, plan.batch, cudnn
                )
        tokens, positions, _ = next(batches)
        now = muon.schedule(i / plan.steps, plan.rate)
        params, moments, loss, again, peak = train_step(
            config,
            params,
            moments,
            tokens,
            positions,
            None
            if own is None
            else own.draw(max(1, plan.batch // OWN_ONE_IN), np.random.default_rng([plan.seed, i])),
            np.float32(now),
            np.float32(BALANCE * now / plan.rate),
            np.float32(plan.weight),
            cudnn,
            dtype,
        )
        if i == start or (i + 1) % REPORT_EVERY == 0 or i + 1 == plan.steps:
            value = float(loss)
            speed = (i + 1 - reported) * tokens.size / (time.time() - clock)
            clock, reported = time.time(), i + 1
            left = (clock - begin) / (i + 1 - start) * (plan.steps - i - 1)
            say(
                f"target {i + 1}/{plan.steps}  loss {value:.3f}  repeats {float(again):.3f}  busiest expert "
                f"{float(peak):.2f} of the mean  {speed / 1e3:.0f}k tokens/s  {left:.0f} s left"
            )
        if plan.saves(i + 1):
            resume.save(state, mark, i + 1, (params, moments))
    if own is not None:
        write(plan.steps)
    return _with_mask_vector(params, special), report


def _with_mask_vector(params: Params, special: Special) -> Params:
    """Give the mask token, which no text trains, the mean embedding of ordinary tokens at their usual
    length.
    """
    table = params["model.embed_tokens.weight"]
    words = table[: special.base]
    mean = jnp.mean(words, axis=0)
    length = jnp.mean(jnp.linalg.norm(words, axis=-1))
    mean = mean / jnp.linalg.norm(mean) * length
    return params | {"model.embed_tokens.weight": table.at[special.mask].set(mean)}


@partial(jax.jit, static_argnames=("config", "cudnn"))
def _losses(config, params, tokens, positions, cudnn):
    logits, counts, _ = next_logits(config, params, tokens, positions, cudnn)
    return jnp.sum(cross_entropy(logits, tokens[:, 1:]) * counts), jnp.sum(counts)


def loss_by_kind(
    config: KimiK2Config,
    params: Params,
    documents: Documents,
    special: Special,
    width: int,
    batch: int,
    cudnn: bool,
) -> dict[str, float]:
    """Mean loss in nats a token, prompts included, of every kind of document that is there.

    ``params`` come in the type to compute in. Rows are padded to whole batches.
    """
    found = {}
    for index, kind in enumerate(KINDS):
        chosen = np.flatnonzero(documents.kinds == index)
        if not len(chosen):
            continue
        rows = pack(documents.take(chosen), width, special, seed=0)
        total = count = 0.0
        for start in range(0, len(rows), batch):
            tokens = np.full((batch, width), special.pad, np.int32)
            positions = np.zeros((batch, width), np.int32)
            part = slice(start, min(start + batch, len(rows)))
            tokens[: part.stop - start] = rows.tokens[part]
            positions[: part.stop - start] = rows.positions[part]
            losses, counts = _losses(config, params, tokens, positions, cudnn)
            total, count = total + float(losses), count + float(counts)
        if count:  # else no document fits a row
            found[kind] = total / count
    return found
