"""INT4 weights in the published "pack-quantized" form (spec kimi section 3): quantise and dequantise.

Element i of a row sits in word i // 8, bits 4 (i % 8) and up, stored as q + 8 with q in -8 .. 7; one bfloat16
scale serves 32 consecutive elements.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.grouped_matmul.api import Int4
from pallas_kernels.grouped_matmul.reference import unpack

GROUP = 32


def quantize(weight: Float[Array, "... out in"]) -> Int4:
    """Round to -7 .. 7 with scale = absmax / 7 a group of 32. ``in`` must be a multiple of 32."""
    *rows, width = weight.shape
    groups = weight.astype(jnp.float32).reshape(*rows, width // GROUP, GROUP)
    scale = (jnp.max(jnp.abs(groups), axis=-1) / 7).astype(jnp.bfloat16)
    divisor = jnp.where(scale == 0, jnp.bfloat16(1), scale).astype(jnp.float32)[..., None]
    q = jnp.clip(jnp.round(groups / divisor), -7, 7).astype(jnp.int32) + 8
    nibbles = q.reshape(*rows, width // 8, 8) << (4 * jnp.arange(8, dtype=jnp.int32))
    return Int4(jnp.sum(nibbles, axis=-1, dtype=jnp.int32), scale)


def dequantize(weight: Int4, rounding: str = "bfloat16") -> Float[Array, "... out in"]:
    """q x scale, rounded to bfloat16 (``rounding="bfloat16"``, the public library's way) or exact
    (``"float32"``).
    """
    return unpack(weight, rounding)
