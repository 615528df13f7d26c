"""Trains the drafter on texts, with the features of a frozen target."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jddtree.config import DFlashConfig
from jddtree.errors import InputError
from jddtree.models.target import Target
from scripts.pair import muon
from scripts.pair.documents import Rows
from scripts.pair.drafter import (
    Params,
    block_hidden,
    choose_anchors,
    init_drafter,
    labels,
    target_pass,
    told,
)
from scripts.pair.loss import block_loss
from scripts.pair.publish import shipped_drafter
from scripts.pair.resume import fingerprint, load, save

REPORT_EVERY = 200
Say = Callable[[str], None]


@dataclass(frozen=True)
class Training:
    """``steps`` batches of ``batch`` rows with ``anchors`` new random blocks each, at most at learning rate
    ``rate``. loss: one of `scripts.pair.loss.LOSSES`. dtype: to compute in; parameters are float32. int4: the
    matrices will be published as INT4, so each step computes with what they round to.
    """

    steps: int
    batch: int
    anchors: int
    rate: float
    loss: str
    seed: int
    dtype: str
    int4: bool

    @property
    def cudnn(self) -> bool:
        """Whether cuDNN's attention can be used."""
        return jax.default_backend() == "gpu" and self.dtype == "bfloat16"


def loss_of(
    config: DFlashConfig,
    params: Params,
    target: Target,
    tokens: jax.Array,
    positions: jax.Array,
    answer: jax.Array,
    key: jax.Array,
    training: Training,
) -> jax.Array:
    """The loss over random blocks of packed rows ([B, T] each, see `documents.Rows`)."""
    if training.int4:
        # The gradient passes the rounding as if it were not there.
        params = jax.tree.map(
            lambda value, seen: value + jax.lax.stop_gradient(seen - value),
            params,
            shipped_drafter(params, True),
        )
    cast = {name: value.astype(training.dtype) for name, value in params.items()}
    passed = jax.lax.stop_gradient(target_pass(target, tokens, positions, config.target_layers))
    anchors, real = choose_anchors(answer, positions, training.anchors, key)
    depth = config.block_size - 1
    right, exists = labels(tokens, positions, anchors, depth)
    exists &= real[..., None]
    hidden = block_hidden(config, cast, target, passed.features, tokens, positions, anchors, training.cudnn)
    blocks = hidden, told(passed.hidden, anchors, depth), right, exists
    hidden, says, right, exists = (x.reshape(-1, *x.shape[2:]) for x in blocks)
    return block_loss(target, hidden, says, right, exists, training.loss)


def fit_drafter(
    config: DFlashConfig,
    target: Target,
    rows: Rows,
    training: Training,
    *,
    state: Path,
    save_every: int,
    judge: Callable[[Params], object],
    judge_every: int,
    say: Say,
    start: Params | None = None,
) -> Params:
    """Train ``start``, or random parameters, or go on from the file ``state``, which is written every
    ``save_every`` steps.

    ``target`` is frozen, in the type to compute in. ``judge`` is called every ``judge_every`` steps, and what
    it finds is said. Returns float32 parameters. Raises InputError for rows shorter than the number of
    anchors.
    """
    if training.anchors > rows.tokens.shape[1]:
        raise InputError(f"{training.anchors} anchors do not fit into rows of {rows.tokens.shape[1]}")
    # Copied, since every step gives its parameters' memory to the next.
    params = jax.tree.map(jnp.copy, start or init_drafter(config, training.seed))
    moments = muon.start(params)
    say(f"drafter: {sum(v.size for v in params.values()) / 1e6:.2f} M parameters, {len(rows)} rows")
    some = np.asarray(target.embed(jnp.arange(64)[None] % config.vocab_size), np.float32)
    begun = [np.asarray(value) for _, value in sorted((start or {}).items())]
    facts = asdict(training) | asdict(config)
    mark = fingerprint(facts, rows.tokens, rows.positions, rows.answer, some, *begun)
    first, found = 0, load(state, mark, (params, moments))
    if found is not None:
        first, (params, moments) = found
        say(f"going on after step {first}")
    # Flattened once: a compiled call should not walk the modules again.
    weights, modules = jax.tree.flatten(target)

    @partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, moments, weights, tokens, positions, answer, key, rate):
        target = jax.tree.unflatten(modules, weights)
        loss, grads = jax.value_and_grad(
            lambda params: loss_of(config, params, target, tokens, positions, answer, key, training)
        )(params)
        return *muon.update(params, grads, moments, rate), loss

    batches = rows.batches(training.batch, training.seed)
    for _ in range(first):
        next(batches)
    key = jax.random.key(training.seed + 1)
    begin = clock = time.time()
    timed = first
    for i in range(first, training.steps):
        tokens, positions, answer = next(batches)
        now = np.float32(muon.schedule(i / training.steps, training.rate))
        step_key = jax.random.fold_in(key, i)
        params, moments, loss = train_step(params, moments, weights, tokens, positions, answer, step_key, now)
        done = i + 1
        if done == first + 1 or done % REPORT_EVERY == 0 or done == training.steps:
            value = float(loss)
            if not np.isfinite(value):
                raise FloatingPointError(f"the drafter's loss is {value} after step {done}")
            speed = (done - timed) * training.batch * training.anchors / (time.time() - clock)
            clock, timed = time.time(), done
            left = (clock - begin) / (done - first) * (training.steps - done)
            say(
                f"drafter {done}/{training.steps}  loss {value:.3f}  {speed / 1e3:.0f}k blocks/s  "
                f"{left:.0f} s left"
            )
        if done % save_every == 0 and done < training.steps:
            save(state, mark, done, (params, moments))
        if done % judge_every == 0 and done < training.steps:
            say(f"drafter {done}/{training.steps}  in the decoder: {judge(params)}")
    return params
