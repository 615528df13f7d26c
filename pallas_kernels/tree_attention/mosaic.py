"""Attention to wide latents on Hopper (`mosaic_kernel`): what the kernel takes, and what is around it."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import device, tuning
from pallas_kernels.tree_attention.reference import unpack_mask

VALUES, REST = 512, 64
"""Channels of a latent key that are its value, and those behind them."""

ROWS = 64
"""Query rows a program."""

KEYS = 64
"""Keys a tile."""

HIDDEN = -1e30
"""Score of a key that is not seen: infinity less infinity would be no number."""


@dataclass(frozen=True)
class Sizes:
    """``waves``: programs a multiprocessor, by which the context is split. ``shortest``: cache slots that a
    split must be worth.
    """

    waves: int
    shortest: int


def tree_attention(
    q: jax.Array,
    prefix_k: jax.Array,
    prefix_v: jax.Array | None,
    block_k: jax.Array,
    block_v: jax.Array | None,
    lengths: jax.Array,
    mask: jax.Array,
    *,
    scale: float,
    lower: jax.Array | None,
    value_width: int | None,
    sizes: Sizes | None = None,
) -> jax.Array:
    """See `pallas_kernels.tree_attention.api.tree_attention`. ``sizes``: the device's own (`tuning`) if None.

    Raises NotImplementedError off Hopper, for anything but bfloat16 latents of 512 + 64 channels, for windows
    and for caches that are no multiple of 64 slots.
    """
    if prefix_v is not None or (value_width, q.shape[-1]) != (VALUES, VALUES + REST) or lower is not None:
        raise NotImplementedError(f"takes latents of {VALUES} + {REST} channels, without windows")
    if {array.dtype for array in (q, prefix_k, block_k)} != {jnp.dtype(jnp.bfloat16)}:
        raise NotImplementedError(f"takes bfloat16, not {q.dtype}")
    if prefix_k.shape[1] % KEYS:
        raise NotImplementedError(f"{prefix_k.shape[1]} cache slots are no multiple of {KEYS}")
    if not device.is_hopper():
        raise NotImplementedError("a kernel for Hopper GPUs")
    # Imported late: where there is no GPU, Pallas may have no Mosaic either.
    from pallas_kernels.tree_attention.mosaic_kernel import attend_split

    programs = -(-q.shape[1] * q.shape[2] // ROWS) * q.shape[0]
    sizes = sizes or tuning.sizes("tree_attention", "mosaic_gpu", Sizes)
    room = sizes.waves * device.processors(132) // programs
    # One part of them is the block's.
    splits = max(1, min(room - 1, prefix_k.shape[1] // sizes.shortest))
    return merged(q, prefix_k, block_k, lengths, mask, scale, splits, attend_split)


def merged(
    q: jax.Array,
    prefix_k: jax.Array,
    block_k: jax.Array,
    lengths: jax.Array,
    mask: jax.Array,
    scale: float,
    splits: int,
    attend_split: Callable,
    *,
    interpret: bool = False,
) -> jax.Array:
    """The whole attention around ``attend_split`` (see `mosaic_kernel.attend_split`); with ``interpret`` the
    merging of its parts runs anywhere.
    """
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.tree_attention.merge_kernel import merge

    B, N, H, width = q.shape
    rows, columns = -N * H % ROWS, -N % KEYS
    queries = jnp.pad(q.reshape(B, N * H, width), ((0, 0), (0, rows), (0, 0)))
    # A tile of keys is multiplied with what is not seen too, where 0 * NaN would be NaN: a key that has gone
    # wrong shows it in the channels that are no value.
    values = jnp.where(jnp.isnan(block_k), 0, block_k)[..., :VALUES]
    # Term by term: XLA makes a kernel of its own of a reduction.
    wrong = sum(block_k[..., at : at + REST] * 0 for at in range(0, VALUES, REST))
    block = jnp.concatenate([values, block_k[..., VALUES:] + wrong], axis=-1)[:, :, 0]
    block = jnp.pad(block, ((0, 0), (0, columns), (0, 0)))
    seen = jnp.repeat(unpack_mask(mask, N), H, axis=1)
    bias = jnp.where(seen, 0.0, HIDDEN).astype(jnp.float32)
    bias = jnp.pad(bias, ((0, 0), (0, rows), (0, columns)), constant_values=HIDDEN)
    parts, lse = attend_split(queries, prefix_k[:, :, 0], block, bias, lengths, scale=scale, splits=splits)
    out = merge(parts, lse, N * H, q.dtype, interpret=interpret)
    return out.reshape(B, N, H, VALUES)
