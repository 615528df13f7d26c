"""What a drafter drafts from every position of texts, wherever the rounds of a method would begin.

Rounds begin behind drafts that were wrong, so a slot is right less often in rounds than from all positions of
the same text, and a change of rounds moves the figure though the drafter may be no better.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from rich.console import Console
from rich.progress import track

from jddtree.models.drafter import Drafter
from jddtree.models.target import Target
from scripts.pair.drafter import target_pass

Text = tuple[Sequence[int], Sequence[int]]
"""A prompt's ids and its text's."""


def drafts_everywhere(target: Target, drafter: Drafter, texts: Sequence[Text]) -> list[list[list[int]]]:
    """For every text, behind each of its tokens, the likeliest token of every slot."""
    width = max((len(prompt) + len(text) for prompt, text in texts), default=0)
    longest = max((len(text) for _, text in texts), default=0)
    weights, form = jax.tree.flatten((target, drafter))

    @jax.jit
    def drafted(weights: list[Array], ids: Array, anchors: Array) -> Array:
        target, drafter = jax.tree.unflatten(form, weights)
        return jnp.argmax(_logits(target, drafter, ids, anchors), axis=-1)

    found = []
    for prompt, text in track(texts, "everywhere", console=Console(stderr=True)):
        ids, count = np.zeros(width, np.int32), len(prompt) + len(text)
        ids[:count] = [*prompt, *text]
        # Those past the end repeat the last one, and are dropped.
        anchors = np.minimum(len(prompt) + np.arange(longest), count - 1).astype(np.int32)
        found.append(np.asarray(drafted(weights, ids, anchors))[: len(text)].tolist())
    return found


def _logits(
    target: Target, drafter: Drafter, ids: Int[Array, " T"], anchors: Int[Array, " A"]
) -> Float[Array, "A D V"]:
    """The draft logits behind the tokens at ``anchors``, places in ``ids``."""
    positions = jnp.arange(len(ids), dtype=jnp.int32)[None]
    features = target_pass(target, ids[None], positions, drafter.target_layers).features
    # One row an anchor, each of which reads the positions before it.
    context = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (len(anchors), *leaf.shape[1:])),
        drafter.context(features, positions),
    )
    return drafter.draft(target, ids[anchors], anchors, context)
