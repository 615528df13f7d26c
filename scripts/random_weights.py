"""Models without checkpoints: shapes from a config.json's content, and random weights made on the devices."""

import json
import re
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from jddtree.models.drafter import Drafter
from jddtree.models.target import Target
from jddtree.plan.pair import NO_DRAFTER, abstract_pair
from jddtree.pytree import dotted

KINDS = {
    "words": r"\.weight_packed$",
    "scales": r"\.weight_scale$",
    "zeros": r"bias$",
    "ones": r"norm",
    "embedding": r"^embed_tokens\.",
    "weights": "",
}
"""What random numbers an array gets: the first whose pattern its path holds."""


def with_layers(
    target: Mapping[str, Any], drafter: Mapping[str, Any] | None, layers: int
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The configs of a pair whose target has so many layers; the drafter's taps are spread over those."""
    target = dict(target)
    if "text_config" in target:
        target["text_config"] = target["text_config"] | {"num_hidden_layers": layers}
    else:
        target["num_hidden_layers"] = layers
    if drafter is None:
        return target, None
    taps = drafter["dflash_config"]["target_layer_ids"]
    taps = [tap * (layers - 1) // max(1, *taps) for tap in taps]
    nested = drafter["dflash_config"] | {"target_layer_ids": taps}
    return target, dict(drafter) | {"num_target_layers": layers, "dflash_config": nested}


def shapes(
    target: Mapping[str, Any], drafter: Mapping[str, Any] | None, dtype: jnp.dtype
) -> tuple[Target, Drafter | None]:
    """The models of two configs with `jax.ShapeDtypeStruct` leaves. ``dtype``: of weights that are not INT4.

    Raises:
      InputError: a config is not usable, or the drafter is for another target.
    """
    with tempfile.TemporaryDirectory() as name:
        places = Path(name, "target"), Path(NO_DRAFTER) if drafter is None else Path(name, "drafter")
        for place, raw in zip(places, (target, drafter), strict=True):
            if raw is not None:
                place.mkdir()
                (place / "config.json").write_text(json.dumps(raw), encoding="utf-8")
        models = abstract_pair(*places, dtype)
    return models[0], models[1]


def filled(model: Any, places: Sequence[Sharding], seed: int) -> Any:
    """The model, given as shapes, with random arrays, each made where it belongs: ``places`` are in the order
    of its leaves. An array depends on the seed, its path and its shape alone.
    """
    paths = jax.tree_util.tree_leaves_with_path(model)
    leaves = []
    for (path, leaf), place in zip(paths, places, strict=True):
        name = dotted(path)
        key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
        kind = next(kind for kind, pattern in KINDS.items() if re.search(pattern, name))
        leaves.append(maker(kind, leaf.shape, leaf.dtype, place)(key))
    return jax.tree.unflatten(jax.tree.structure(model), leaves)


@cache
def maker(kind: str, shape: tuple[int, ...], dtype: jnp.dtype, place: Sharding) -> Callable:
    """A compiled function from a key to an array of one of `KINDS`, or of "numbers" around 0 of deviation 1.

    The words of INT4 are random bits and never anything wider.
    """

    def make(key: jax.Array) -> jax.Array:
        if kind == "words":
            words = jax.random.bits(key, shape, jnp.uint32)
            # A nibble of 0 stands for -8, which has no counterpart: it becomes that for 0. With a mean of
            # their own, weights would add the same to every token, and send all to few experts.
            lowest = ~(words | words >> 1 | words >> 2 | words >> 3) & 0x11111111
            return jax.lax.bitcast_convert_type(words | lowest << 3, jnp.int32)
        if kind == "zeros":
            return jnp.zeros(shape, dtype)
        if kind == "ones":
            return jnp.ones(shape, dtype)
        if kind == "scales":
            # Of nibbles from -7 to 7, so that a weight's deviation is one over the root of the width.
            return jnp.full(shape, (32 * shape[-1]) ** -0.5 / 4.18, dtype)
        # Quieter embeddings would leave tokens alike, and so their experts; louder ones, where the head is
        # tied to them, would make every token its own successor.
        deviation = {"numbers": 1.0, "embedding": 0.1}.get(kind, shape[-1] ** -0.5)
        return (jax.random.normal(key, shape, jnp.float32) * deviation).astype(dtype)

    return jax.jit(make, out_shardings=place)
