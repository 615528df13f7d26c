"""Bytes that a round must read, and how fast a device can read them."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from jddtree.checkpoint.skeleton import array_paths
from jddtree.load import Pair
from jddtree.models.drafter import Drafter
from jddtree.models.target import Target
from jddtree.sweep.measure import Run

READABLE = {
    # Measured: a large array read once by XLA; the data sheet has 4,800.
    "NVIDIA H200": 4000.0,
    # Data sheets.
    "NVIDIA H100 80GB HBM3": 3350.0,
    "NVIDIA A100-SXM4-80GB": 2039.0,
}
"""GB/s by the device's own name (`jax.Device.device_kind`)."""


@dataclass
class Weights:
    """Bytes of a model. dense: read in every pass. experts: of one routed expert, each MoE layer. head: the
    part of ``dense`` that makes logits.
    """

    dense: int = 0
    head: int = 0
    experts: dict[str, float] = field(default_factory=dict)


def weights(model: Target | Drafter, tied: bool) -> Weights:
    """Of a target or a drafter. An embedding counts only where it is the head too: of the table a pass reads
    a few lines.
    """
    found = Weights()
    for path, leaf in array_paths(model):
        size = leaf.size * leaf.dtype.itemsize
        if ".experts." in path:
            layer = path.split(".experts.")[0]
            found.experts[layer] = found.experts.get(layer, 0.0) + size / leaf.shape[0]
        elif path.startswith("embed_tokens") and not tied:
            continue
        else:
            found.dense += size
            found.head += size if path.startswith(("lm_head", "embed_tokens")) else 0
    return found


def cache_bytes(model: Target | Drafter, dtype: str) -> int:
    """Of one token."""
    made = jax.eval_shape(lambda: model.new_cache(1, 1, jnp.dtype(dtype)))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made))


def bytes_a_round(pair: Pair, run: Run, experts: list[float]) -> float | None:
    """What a round of this cell must read at least: the weights that it touches, once a pass, and the
    committed tokens' caches. ``experts``: distinct experts a pass, each MoE layer. None where they are not
    known.
    """
    target = weights(pair.target, pair.target.config.tied)
    if len(experts) != len(target.experts):
        return None
    total = target.dense + sum(
        size * count for size, count in zip(target.experts.values(), experts, strict=True)
    )
    token = cache_bytes(pair.target, pair.dtype)
    if pair.drafter is not None and run.decoder.method.depth:
        # The drafter reads the target's head too, in a pass of its own.
        total += weights(pair.drafter, False).dense + target.head
        token += cache_bytes(pair.drafter, pair.dtype)
    return total + token * _cached_tokens(run)


def _cached_tokens(run: Run) -> float:
    """Committed tokens that a round reads, all rows together; mean over the rounds."""
    total, rounds = 0, 0
    for batch in run.repetitions[-1]:
        rounds += batch.rounds
        for result, prompt in zip(batch.results, batch.prompts, strict=True):
            length = prompt
            for committed in result.acceptance_lengths:
                total += length
                length += committed
    return total / rounds if rounds else 0.0
