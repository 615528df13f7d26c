"""The drafter's loss: cross-entropy, weighted by what a slot is worth to the accepted length.

Half of a slot's label is the text's token, half the target's own distribution there: the text is one sample
of it, so the second half says the same with less noise.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jddtree.models.target import Target

LOSSES = ("expected-length", "exponential")
SMOOTHING = 0.5
SOFT = 0.5  # share of the target's distribution in the labels
DECAY = 4.0  # slot k counts exp(-(k - 1) / DECAY)
LOGIT_BYTES = 1 << 30
"""Logits held at a time, float32; beyond that blocks go through the head part by part."""


def expected_length_weights(
    right: Float[Array, "... D"], exists: Bool[Array, "... D"]
) -> Float[Array, "... D"]:
    """Weights of the slots' cross-entropy, given the probability of each slot's right token.

    The expected number of accepted slots is the sum over k of the product of the first k probabilities, so
    its derivative by log p_j is the sum of those products from k = j on (arXiv 2605.18810). Each p is
    smoothed to (1 - s) p + s, s = 0.5, so that a bad slot does not hide all after it. Slots that do not exist
    come last in a block, and weigh nothing.
    """
    smooth = (1 - SMOOTHING) * right + SMOOTHING
    products = jnp.cumprod(smooth, axis=-1) * exists
    return jnp.flip(jnp.cumsum(jnp.flip(products, axis=-1), axis=-1), axis=-1) * exists


def exponential_weights(exists: Bool[Array, "... D"]) -> Float[Array, "... D"]:
    """The DFlash paper's weights (arXiv 2602.06036): the same for every block."""
    return jnp.exp(-jnp.arange(exists.shape[-1]) / DECAY) * exists


def block_loss(
    target: Target,
    hidden: Float[Array, "C D M"],
    told: Float[Array, "C D M"],
    right: Int[Array, "C D"],
    exists: Bool[Array, "C D"],
    kind: str,
) -> Float[Array, ""]:
    """Mean weighted cross-entropy of C blocks under the target's head; ``kind`` is one of LOSSES.

    ``hidden`` is the drafter's, ``told`` the target's own where it predicts the same tokens.
    Logits of all blocks at once may not fit: parts of them are made, and made again for the gradient.
    """
    blocks, depth, _ = hidden.shape
    part = partial(_sums, target, kind)
    wanted = -(-blocks * depth * target.config.vocab_size * 4 // LOGIT_BYTES)
    parts = next(count for count in range(wanted, blocks + 1) if blocks % count == 0)
    if parts == 1:
        losses, weights = part((hidden, told, right, exists))
    else:
        split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), (hidden, told, right, exists))
        losses, weights = map(jnp.sum, jax.lax.map(jax.checkpoint(part), split))
    return losses / jnp.maximum(weights, 1e-6)


def _sums(target: Target, kind: str, blocks: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
    """Weighted losses of some blocks, and their weights, summed."""
    hidden, told, right, exists = blocks
    logits, soft = target.logits(hidden), jax.nn.softmax(target.logits(told))
    # Not a gather: its gradient would be a scatter into one more array of logits.
    picked = jnp.arange(logits.shape[-1]) == right[..., None]
    of_text = jnp.sum(jnp.where(picked, logits, 0.0), axis=-1)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    losses = normaliser - (1 - SOFT) * of_text - SOFT * jnp.sum(soft * logits, axis=-1)
    if kind == "exponential":
        weights = exponential_weights(exists)
    else:
        weights = expected_length_weights(jnp.exp(jax.lax.stop_gradient(of_text - normaliser)), exists)
    return jnp.sum(losses * weights), jnp.sum(weights)
