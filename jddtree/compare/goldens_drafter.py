"""Reference data for the DFlash drafter: rounds of context and block, stage by stage."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jddtree.cache import append
from jddtree.compare.checks import Case, Cases, read_arrays
from jddtree.compare.padding import padded, widen
from jddtree.compare.weights import reference_drafter
from jddtree.models.dflash import DFlash

LIMIT = 1e-4
"""Absolute, float32."""


def drafter_forward(folder: Path) -> Cases:
    """A case is a file: draft rounds over one growing cache of context keys and values."""
    drafter = cache(lambda: reference_drafter(folder))
    for path in sorted(folder.glob("case_*.npz")):

        def body(case: Case, path: Path = path) -> None:
            _rounds(case, drafter(), read_arrays(path))

        yield path.stem, body


@jax.jit
def _context(drafter: DFlash, features, positions, context: Any, new, committed):
    fresh = drafter.context(features, positions)
    return drafter.context_feature(features), append(context, fresh, new, committed)


@jax.jit
def _block(drafter: DFlash, embeddings: jax.Array, positions: jax.Array, context: Any, length: jax.Array):
    return drafter.block(embeddings, positions, context, length)


def _rounds(case: Case, drafter: DFlash, golden: Mapping[str, np.ndarray]) -> None:
    total = int(golden["ctx_lens"].sum())
    context = drafter.new_cache(1, padded(total), jnp.dtype(jnp.float32))
    committed = np.zeros((1,), np.int32)
    for step in range(int(golden["num_steps"])):
        features, positions = golden[f"step{step}_target_hidden"], golden[f"step{step}_position_ids"]
        new = np.array([features.shape[1]], np.int32)
        places = widen(positions[:, : new[0]])
        feature, context = _context(drafter, widen(features), places, context, new, committed)
        case.close(
            f"step {step} ctx_feature",
            np.asarray(feature)[:, : new[0]],
            golden[f"step{step}_ctx_feature"],
            LIMIT,
        )
        committed = committed + new
        embeddings = golden[f"step{step}_noise_embedding"]
        output, layers = _block(drafter, embeddings, positions[:, new[0] :], context, committed)
        for index, hidden in enumerate(layers):
            case.close(f"step {step} layer {index}", hidden, golden[f"step{step}_layer{index}_hidden"], LIMIT)
        case.close(f"step {step} output", output, golden[f"step{step}_output"], LIMIT)
    for index, (keys, values) in enumerate(jax.device_get(context)):
        for name, actual in (("k", keys[:, :total]), ("v", values[:, :total])):
            expected = golden[f"final_cache_layer{index}_{name}"].swapaxes(1, 2)
            case.close(f"final cache, layer {index} {name}", actual, expected, LIMIT)
