"""Trains the target, and measures its loss by kind of text."""

import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jddtree.config import KimiK2Config
from scripts.pair import muon
from scripts.pair.documents import KINDS, Documents, Rows, Special, pack
from scripts.pair.target import Params, init_target, rounded, token_losses

BALANCE = 5e-3  # step of the router's correction bias, falling with the learning rate
REPORT_EVERY = 50
Say = Callable[[str], None]


@partial(jax.jit, static_argnames=("config", "cudnn", "dtype"), donate_argnames=("params", "moments"))
def _train_step(config, params, moments, tokens, positions, rate, balance, cudnn, dtype):
    def loss_of(params):
        losses, counts, loads = token_losses(config, rounded(params, dtype), tokens, positions, cudnn)
        return jnp.sum(losses * counts) / jnp.maximum(jnp.sum(counts), 1), loads

    (loss, loads), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    params, moments = muon.update(params, grads, moments, rate)
    mean = jnp.mean(loads, axis=-1, keepdims=True)
    biases = sorted(
        (n for n in params if n.endswith("e_score_correction_bias")), key=lambda n: int(n.split(".")[2])
    )
    for name, load, average in zip(biases, loads, mean, strict=True):
        params[name] = params[name] + balance * jnp.sign(average - load)
    return params, moments, loss, jnp.max(loads / mean)


def fit_target(
    config: KimiK2Config,
    rows: Rows,
    special: Special,
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    cudnn: bool,
    dtype: jnp.dtype,
    say: Say,
) -> Params:
    """Train from scratch: ``steps`` batches of ``batch`` rows, computing in ``dtype``. Returns float32
    parameters.

    Routing stays even through the correction bias alone (no auxiliary loss): after each step it moves by a
    fixed amount towards the mean load (arXiv 2408.15664).
    """
    params = init_target(config, seed)
    moments = muon.start(params)
    say(
        f"target: {sum(v.size for v in params.values()) / 1e6:.1f} M parameters, {len(rows)} rows of "
        f"{rows.tokens.shape[1]}"
    )
    batches = rows.batches(batch, seed)
    begin = clock = time.time()
    for i in range(steps):
        tokens, positions, _ = next(batches)
        now = muon.schedule(i / steps, rate)
        params, moments, loss, peak = _train_step(
            config,
            params,
            moments,
            tokens,
            positions,
            np.float32(now),
            np.float32(BALANCE * now / rate),
            cudnn,
            dtype,
        )
        if i == 0 or (i + 1) % REPORT_EVERY == 0 or i + 1 == steps:
            value = float(loss)
            done = 1 if i == 0 else (i % REPORT_EVERY) + 1
            speed = done * tokens.size / (time.time() - clock)
            clock = time.time()
            left = (clock - begin) / (i + 1) * (steps - i - 1)
            say(
                f"target {i + 1}/{steps}  loss {value:.3f}  busiest expert {float(peak):.2f} of the mean  "
                f"{speed / 1e3:.0f}k tokens/s  {left:.0f} s left"
            )
    return _with_mask_vector(params, special)


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
    losses, counts, _ = token_losses(config, params, tokens, positions, cudnn)
    return jnp.sum(losses * counts), jnp.sum(counts)


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
        found[kind] = total / count
    return found
