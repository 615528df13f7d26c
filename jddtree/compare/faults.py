"""Known mistakes of such stacks, put in on purpose: what `compare torch` must catch, and locate."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Literal, get_args
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from jddtree.errors import InputError
from jddtree.load import Pair
from jddtree.models import gqa, layers, mla
from jddtree.pytree import dotted
from pallas_kernels.norm import rms_norm

Fault = Literal["mask-stride", "rope-layout", "router-bias-bf16", "taps-off-by-one", "nibble-order"]
FAULTS: tuple[str, ...] = get_args(Fault)

LOW = 0x0F0F0F0F


@contextmanager
def injected(pair: Pair, fault: Fault | None, slots: int) -> Generator[Pair]:
    """The pair with a fault in its weights, or with a fault in force in the code that runs inside the block.

    ``slots``: N of the tree that will be verified. Raises InputError where the fault would change nothing.
    """
    if fault in ("taps-off-by-one", "mask-stride") and pair.drafter is None:
        raise InputError(f"--inject {fault} needs a --drafter")
    if fault == "mask-stride" and slots == pair.block_size:
        raise InputError(
            f"--inject mask-stride changes nothing at --budget {slots - 1}, where the tree is as wide as the "
            "block: take another budget"
        )
    if fault == "router-bias-bf16":
        pair = _changed(pair, "e_score_correction_bias", _through_bfloat16, fault)
    if fault == "nibble-order":
        pair = _changed(pair, "weight_packed", _swap_nibbles, fault)
    with _other_rope() if fault == "rope-layout" else nullcontext():
        yield pair


def shifted(taps: tuple[int, ...]) -> tuple[int, ...]:
    """Every tap one layer early; the first layer becomes the second."""
    return tuple(tap - 1 if tap else 1 for tap in taps)


def misread(visible: Bool[np.ndarray, "N N"], stride: int) -> Bool[np.ndarray, "N N"]:
    """Rows of a flat mask found with the block size for a stride."""
    slot = np.arange(len(visible))
    flat = visible.reshape(-1)
    return flat[np.minimum(slot[:, None] * stride + slot, flat.size - 1)] | np.eye(len(visible), dtype=bool)


@contextmanager
def _other_rope() -> Generator[None]:
    """The two pairings of rotary channels, exchanged. What was traced before would hide it, and after."""
    jax.clear_caches()
    with (
        mock.patch.object(gqa, "rotate", _rotate_pairs),
        mock.patch.object(mla, "rotate_pairs", layers.rotate_halves),
        mock.patch.object(mla, "prepare", _prepare_halves),
    ):
        yield
    jax.clear_caches()


def _rotate_pairs(heads, values, weights, cos, sin, *, eps):
    """`pallas_kernels.rotary.api.rotate` with MLA's pairing."""
    normed = (
        x if weight is None else rms_norm(x, weight, eps) for x, weight in zip(heads, weights, strict=True)
    )
    return *(layers.rotate_pairs(x, cos, sin) for x in normed), values


def _prepare_halves(q, kv, q_weight, kv_weight, cos, sin, *, eps):
    """`pallas_kernels.latent.api.prepare` with the dense models' pairing."""
    rank = kv_weight.shape[0]
    latent = rms_norm(kv[..., :rank], kv_weight, eps)
    key = layers.rotate_halves(kv[:, :, None, rank:], cos, sin)[:, :, 0]
    return rms_norm(q, q_weight, eps), jnp.concatenate([latent, key], axis=-1)


def _changed(pair: Pair, name: str, change, fault: Fault) -> Pair:
    """The pair with every array of that name in its target changed. Raises InputError if there is none, or
    if nothing changes.
    """
    found = False

    def one(path, leaf):
        nonlocal found
        if dotted(path).rsplit(".", 1)[-1] != name:
            return leaf
        changed = change(leaf)
        found |= bool(jnp.any(changed != leaf))
        return changed

    target = jax.tree_util.tree_map_with_path(one, pair.target)
    if not found:
        raise InputError(f"--inject {fault} changes nothing in this target: it has no {name} that differs")
    return replace(pair, target=target)


def _through_bfloat16(bias: jax.Array) -> jax.Array:
    return bias.astype(jnp.bfloat16).astype(bias.dtype)


def _swap_nibbles(packed: jax.Array) -> jax.Array:
    return ((packed & LOW) << 4) | ((packed >> 4) & LOW)
