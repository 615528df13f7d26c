"""Trains the drafter on texts, with the features of a frozen target."""

import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jddtree.config import DFlashConfig, KimiK2Config
from jddtree.errors import InputError
from scripts.pair import muon
from scripts.pair.documents import Rows
from scripts.pair.drafter import block_logits, choose_anchors, init_drafter, labels
from scripts.pair.target import Params, forward

DECAY = 4.0  # slot k counts exp(-(k - 1) / DECAY)
REPORT_EVERY = 200
Say = Callable[[str], None]


def _blocks(config, target_config, drafter, target, tokens, positions, answer, key, anchors, cudnn):
    """Mean weighted loss; matches [B, A, D] with the text; which labels exist."""
    features = jnp.concatenate(
        [
            forward(target_config, target, tokens, positions, cudnn).layers[tap]
            for tap in config.target_layers
        ],
        axis=-1,
    )
    chosen, real = choose_anchors(answer, positions, anchors, key)
    depth = config.block_size - 1
    right, exists = labels(tokens, positions, chosen, depth)
    exists &= real[..., None]
    logits = block_logits(
        config, drafter, target, jax.lax.stop_gradient(features), tokens, positions, chosen, cudnn
    )
    losses = (
        jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, right[..., None], axis=-1)[..., 0]
    )
    weights = jnp.exp(-jnp.arange(depth) / DECAY) * exists
    matches = (jnp.argmax(logits, axis=-1) == right) & exists
    return jnp.sum(losses * weights) / jnp.maximum(jnp.sum(weights), 1), matches, exists


@partial(
    jax.jit,
    static_argnames=("config", "target_config", "anchors", "cudnn", "dtype"),
    donate_argnames=("params", "moments"),
)
def _train_step(
    config,
    target_config,
    params,
    moments,
    target,
    tokens,
    positions,
    answer,
    key,
    rate,
    anchors,
    cudnn,
    dtype,
):
    def loss_of(params):
        cast = {name: value.astype(dtype) for name, value in params.items()}
        return _blocks(config, target_config, cast, target, tokens, positions, answer, key, anchors, cudnn)[0]

    loss, grads = jax.value_and_grad(loss_of)(params)
    params, moments = muon.update(params, grads, moments, rate)
    return params, moments, loss


@partial(jax.jit, static_argnames=("config", "target_config", "anchors", "cudnn"))
def _matches(config, target_config, params, target, tokens, positions, answer, key, anchors, cudnn):
    _, matches, exists = _blocks(
        config, target_config, params, target, tokens, positions, answer, key, anchors, cudnn
    )
    whole = exists[..., -1]  # blocks that the text fills
    run = jnp.cumprod(matches, axis=-1) * whole[..., None]
    return jnp.sum(matches * whole[..., None], axis=(0, 1)), jnp.sum(run, axis=(0, 1)), jnp.sum(whole)


def slots_right(
    config: DFlashConfig,
    target_config: KimiK2Config,
    params: Params,
    target: Params,
    rows: Rows,
    batch: int,
    anchors: int,
    cudnn: bool,
) -> dict[str, list[float] | float]:
    """Teacher-forced agreement with texts, over random anchors of one batch.

    ``slots`` [D]: share of blocks whose slot k equals the text; ``chain``: 1 + the mean run of agreeing
    slots, which for texts the target wrote greedily is what a chain commits a round.
    """
    tokens, positions, answer = next(rows.batches(batch, seed=1))
    found, run, count = _matches(
        config, target_config, params, target, tokens, positions, answer, jax.random.key(1), anchors, cudnn
    )
    count = max(float(count), 1.0)
    return {"slots": [float(v) / count for v in found], "chain": 1 + float(jnp.sum(run)) / count}


def fit_drafter(
    config: DFlashConfig,
    target_config: KimiK2Config,
    target: Params,
    rows: Rows,
    *,
    steps: int,
    batch: int,
    anchors: int,
    rate: float,
    seed: int,
    cudnn: bool,
    dtype: jnp.dtype,
    say: Say,
) -> Params:
    """Train from scratch: ``steps`` batches of ``batch`` rows with ``anchors`` new random blocks each.

    ``target``: the frozen target's parameters in ``dtype``, as shipped (dequantised). Returns float32
    parameters. Raises InputError for rows shorter than the number of anchors.
    """
    if anchors > rows.tokens.shape[1]:
        raise InputError(f"{anchors} anchors do not fit into rows of {rows.tokens.shape[1]}")
    params = init_drafter(config, seed)
    moments = muon.start(params)
    say(f"drafter: {sum(v.size for v in params.values()) / 1e6:.2f} M parameters, {len(rows)} rows")
    batches = rows.batches(batch, seed)
    key = jax.random.key(seed + 1)
    begin = clock = time.time()
    for i in range(steps):
        tokens, positions, answer = next(batches)
        now = np.float32(muon.schedule(i / steps, rate))
        params, moments, loss = _train_step(
            config,
            target_config,
            params,
            moments,
            target,
            tokens,
            positions,
            answer,
            jax.random.fold_in(key, i),
            now,
            anchors,
            cudnn,
            dtype,
        )
        if i == 0 or (i + 1) % REPORT_EVERY == 0 or i + 1 == steps:
            value = float(loss)
            done = 1 if i == 0 else (i % REPORT_EVERY) + 1
            speed = done * batch * anchors / (time.time() - clock)
            clock = time.time()
            left = (clock - begin) / (i + 1) * (steps - i - 1)
            say(f"drafter {i + 1}/{steps}  loss {value:.3f}  {speed / 1e3:.0f}k blocks/s  {left:.0f} s left")
    return params
