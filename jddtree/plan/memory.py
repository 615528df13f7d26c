"""What a device holds and reads, in bytes: its part of every array of weights and state under a layout."""

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from jddtree.config import KimiK2Config
from jddtree.decoder import CHUNKS
from jddtree.models.drafter import Drafter
from jddtree.models.target import Target
from jddtree.pipeline import stacked
from jddtree.plan.floor import busiest_rank, distinct_experts
from jddtree.pytree import dotted
from jddtree.sharding import Layout, cache_specs, first_staged, is_staged, parameter_specs
from pallas_kernels.grouped_matmul.reference import BLOCK_BYTES

CLASSES = {
    "attention": r"\.self_attn\.",
    "scales of the experts": r"\.experts\.\w+\.weight_scale$",
    "experts": r"\.experts\.",
    "embedding": r"^embed_tokens\.",
    "head": r"^lm_head\.",
    "dense and shared MLPs, routers, norms": "",
}
"""Classes of a target's weights: the first whose pattern its dotted path holds."""

REORDERED = 0.01
"""Of the weights, what compilers were seen to copy into another order."""


@dataclass(frozen=True)
class Share:
    """One array's part on a device. kind: its class. layer: of its model, None outside of layers. staged:
    it is one of the layers that stages share out.
    """

    kind: str
    layer: int | None
    bytes: int
    staged: bool


@dataclass(frozen=True)
class Reads:
    """Bytes that the busiest device must read in one pass of a model."""

    weights: float
    cache: float

    @property
    def total(self) -> float:
        """Both."""
        return self.weights + self.cache


@dataclass(frozen=True)
class Holdings:
    """A pair's arrays on one device under a layout; all devices hold equally much.

    batch: rows in all. slots: of the caches, a row.
    """

    target: Target
    drafter: Drafter | None
    layout: Layout
    batch: int
    slots: int
    dtype: jnp.dtype

    @property
    def rows(self) -> int:
        """Rows that a device decodes."""
        return self.batch // self.layout.data

    def by_class(self) -> dict[str, int]:
        """Bytes of a device by class, without scratch."""
        found = dict.fromkeys((*CLASSES, "drafter", "cache", "cache of the drafter", "rest of the state"), 0)
        for share in (*self.weights, *self.caches):
            found[share.kind] += share.bytes
        found["rest of the state"] = self._state
        return {kind: size for kind, size in found.items() if size}

    @cached_property
    def weights(self) -> tuple[Share, ...]:
        """Every array of both models."""
        found = self._weights(self._target)
        if self.drafter is not None:
            found += [replace(share, kind="drafter") for share in self._weights(self.drafter)]
        return tuple(found)

    @cached_property
    def caches(self) -> tuple[Share, ...]:
        """Every array of both models' caches, layer by layer."""
        found = self._caches(self._target, "cache")
        if self.drafter is not None:
            found += self._caches(self.drafter, "cache of the drafter")
        return tuple(found)

    def verify(self, width: int, context: int) -> Reads:
        """One pass of the target over ``width`` slots a row, after ``context`` tokens a row.

        Stages work in turns, on a part of the rows each (`jddtree.pipeline`); every turn is waited for.
        """
        config = self.target.config
        parts = math.gcd(self.rows, self.layout.stage)
        turns, weights = parts + self.layout.stage - 1, 0.0
        for share in self.weights:
            if share.kind == "drafter" or (share.kind == "embedding" and not config.tied):
                continue  # of the embedding a pass reads a few lines
            read = float(turns if share.staged else 1)
            if "experts" in share.kind and isinstance(config, KimiK2Config):
                tokens = width * self.rows // (parts if share.staged else 1)
                ranks = self.layout.expert
                hit = busiest_rank(config.num_experts, config.experts_per_token, tokens, ranks)
                read *= hit * ranks / config.num_experts
            weights += share.bytes * read
        return Reads(weights, self._cache_reads("cache", context, turns / parts))

    def draft(self, context: int) -> Reads:
        """One pass of the drafter, with the target's head."""
        head = "embedding" if self.target.config.tied else "head"
        weights = math.fsum(share.bytes for share in self.weights if share.kind in ("drafter", head))
        return Reads(weights, self._cache_reads("cache of the drafter", context, 1.0))

    def distinct(self, width: int) -> float | None:
        """Experts of a layer that the rows of one device hit in a pass; None for a target without any."""
        config = self.target.config
        if not isinstance(config, KimiK2Config):
            return None
        return distinct_experts(config.num_experts, config.experts_per_token, self.rows * width)

    def sums(self, width: int) -> dict[str, int]:
        """Sums between devices in one pass of the target, two a layer and one for the embedding: how many,
        and the bytes that each device gives to one. None in a layer that is on one device.
        """
        config = self.target.config
        first, inside = first_staged(self.layout, config), self.layout.ways("expert", "tensor")
        count = 1 + 2 * first if self._ways > 1 else 0
        count += 2 * (config.num_layers - first) if inside > 1 else 0
        return {"count": count, "bytes": self.rows * width * config.hidden_size * self.dtype.itemsize}

    def on(self, layout: Layout) -> "Holdings":
        """The rows of one device here, on other devices."""
        return replace(self, layout=layout, batch=self.rows * layout.data)

    def scratch(self, budget: int) -> int:
        """An estimate of what programs hold besides, twice each: the scores of a prefill's attention, logits
        of a round, the experts that are dequantised at a time; and some weights in another order.
        """
        config = self.target.config
        held = self.rows * CHUNKS[-1] * (config.num_heads // self._ways) * self.slots * 4
        held += self.rows * (budget + 1) * config.vocab_size // self._ways * 4
        if isinstance(config, KimiK2Config):
            inside = self.layout.ways("expert", "tensor")
            numbers = 3 * config.num_experts * config.moe_intermediate_size * config.hidden_size // inside
            held += min(BLOCK_BYTES, numbers * self.dtype.itemsize)
        return 2 * held + round(REORDERED * sum(share.bytes for share in self.weights))

    @property
    def _ways(self) -> int:
        """Devices that share a row's work."""
        return self.layout.ways("stage", "expert", "tensor")

    @property
    def _target(self) -> Target:
        """In the form that is cut into stages."""
        staged = is_staged(self.layout, self.target.config)
        return stacked(self.target, self.layout) if staged else self.target

    @property
    def _state(self) -> int:
        """Of a device's state and request besides caches: tokens, features, stop tokens, numbers a row."""
        config, features, numbers = self.target.config, 0, 14
        if self.drafter is not None:
            features = self.drafter.block_size * len(self.drafter.target_layers) * config.hidden_size
        whole = 4 * (self.slots + 1 + numbers) + features * self.dtype.itemsize + config.vocab_size
        return self.rows * whole

    def _weights(self, model: Target | Drafter) -> list[Share]:
        found, mesh = [], self.layout.abstract_mesh()
        leaves = jax.tree_util.tree_leaves_with_path(model)
        specs = jax.tree.leaves(parameter_specs(self.layout, model))
        first = first_staged(self.layout, model.config)
        for (path, leaf), spec in zip(leaves, specs, strict=True):
            name = dotted(path)
            kind = next(kind for kind, pattern in CLASSES.items() if re.search(pattern, name))
            layer = int(name.split(".")[1]) if name.startswith("layers.") else None
            size = _part(mesh, leaf.shape, leaf.dtype, spec)
            found.append(Share(kind, layer, size, layer is not None and layer >= first))
        return found

    def _caches(self, model: Target | Drafter, kind: str) -> list[Share]:
        found, mesh = [], self.layout.abstract_mesh()
        made = jax.eval_shape(partial(model.new_cache, self.batch, self.slots, self.dtype))
        specs = cache_specs(self.layout, model.config, made)
        first = first_staged(self.layout, model.config)
        for index, layer in enumerate(made):
            staged = index >= first
            for leaf, spec in zip(jax.tree.leaves(layer), jax.tree.leaves(specs[index]), strict=True):
                rows = leaf.shape[0] * (self.layout.stage if staged else 1)
                size = _part(mesh, (rows, *leaf.shape[1:]), leaf.dtype, spec)
                found.append(Share(kind, index, size, staged))
        return found

    def _cache_reads(self, kind: str, context: int, staged: float) -> float:
        """Of committed tokens, those of layers in stages ``staged`` times; layers with a sliding window read
        that alone.
        """
        config: Any = self.target.config if kind == "cache" else self.drafter and self.drafter.config
        windows = getattr(config, "windows", (None,) * config.num_layers)
        return math.fsum(
            share.bytes / self.slots * min(context, windows[share.layer] or context) * (staged**share.staged)
            for share in self.caches
            if share.kind == kind and share.layer is not None
        )


def _part(mesh: AbstractMesh, shape: tuple[int, ...], dtype: jnp.dtype, spec: PartitionSpec) -> int:
    """Bytes of one device's part of an array."""
    return math.prod(NamedSharding(mesh, spec).shard_shape(shape)) * dtype.itemsize
