"""Stages: layers shared out over devices.

A program is the same on every device, so the k-th layers of all stages are one set of arrays: [first, ...] of
a layer becomes [stages x first, ...], whose parts over the axis ``stage`` are the layers' own.
"""

from typing import Any

import jax
from flax import nnx

from jddtree.sharding import stage_sizes, unstaged_layers


def stacked(model: Any, stages: int) -> Any:
    """The form in which an abstract target is cut into stages: its layers are those that stages do not share
    out, then one for every layer of the longest stage. Shorter stages leave the last of these unused (zeros).
    """
    first = unstaged_layers(model.config)
    slots = stage_sizes(model.config.num_layers - first, stages)[0]

    def widen(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((stages * leaf.shape[0], *leaf.shape[1:]), leaf.dtype)

    layers = list(model.layers)
    staged = [jax.tree.map(widen, layer) for layer in layers[first : first + slots]]
    copy = jax.tree.map(lambda leaf: leaf, model)
    copy.layers = nnx.List([*layers[:first], *staged])
    return copy
