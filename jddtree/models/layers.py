"""Parts that every model shares: norms, rotary positions, linear layers, the dense MLP."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jddtree.config import Rope
from jddtree.quantization import dequantize, quantize
from pallas_kernels.grouped_matmul.api import Int4

FLOAT32 = jnp.dtype(jnp.float32)


def rms_norm(x: Float[Array, "... M"], weight: Float[Array, " M"], eps: float) -> Float[Array, "... M"]:
    """RMS norm as the public code does it: statistics in float32, cast back, then times the weight."""
    x32 = x.astype(jnp.float32)
    scaled = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return weight * scaled.astype(x.dtype)


def inverse_frequencies(rope: Rope, dim: int) -> np.ndarray:
    """Angles a position, float32 [dim / 2]: theta^(-2j/dim), interpolated by YaRN's ramp (spec kimi 2.4)."""
    # Rounded to float32 where the public code rounds: at position 9,000 one last place is half a milliradian.
    one, exponents = np.float32(1), np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    powers = (rope.theta ** exponents.astype(np.float64)).astype(np.float32)
    yarn = rope.yarn
    if yarn is None:
        return one / powers

    def dimension(rotations: float) -> float:
        return (
            dim
            * math.log(yarn.original_max_position / (2 * math.pi * rotations))
            / (2 * math.log(rope.theta))
        )

    low, high = dimension(yarn.beta_fast), dimension(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = one - np.clip(ramp, 0, 1)
    return one / (np.float32(yarn.factor) * powers) * (one - kept) + one / powers * kept


def rope_tables(
    rope: Rope, dim: int, positions: Int[Array, "B N"]
) -> tuple[Float[Array, "B N half"], Float[Array, "B N half"]]:
    """cos and sin of every position, float32, with YaRN's amplitude applied."""
    angles = positions[..., None].astype(jnp.float32) * inverse_frequencies(rope, dim)
    amplitude = 1.0 if rope.yarn is None else rope.yarn.amplitude
    return jnp.cos(angles) * amplitude, jnp.sin(angles) * amplitude


def _rotate(low: Array, high: Array, cos: Array, sin: Array, dtype: jnp.dtype) -> Array:
    """Rotate the pairs (low, high) of [B, N, H, dim/2]; the halves come back side by side."""
    low, high = low.astype(jnp.float32), high.astype(jnp.float32)
    cos, sin = cos[:, :, None], sin[:, :, None]
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(dtype)


def rotate_halves(x: Float[Array, "B N H dim"], cos: Array, sin: Array) -> Float[Array, "B N H dim"]:
    """Rotary positions with pair j = channels (j, j + dim/2): Qwen3 and DFlash."""
    low, high = jnp.split(x, 2, axis=-1)
    return _rotate(low, high, cos, sin, x.dtype)


def rotate_pairs(x: Float[Array, "B N H dim"], cos: Array, sin: Array) -> Float[Array, "B N H dim"]:
    """Rotary positions with pair j = channels (2j, 2j+1): MLA. Comes back as [evens | odds]."""
    return _rotate(x[..., 0::2], x[..., 1::2], cos, sin, x.dtype)


class RMSNorm(nnx.Module):
    """Weight [M]."""

    def __init__(self, size: int, eps: float, dtype: jnp.dtype):
        self.weight = nnx.Param(jnp.ones((size,), dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "... M"]) -> Float[Array, "... M"]:
        return rms_norm(x, self.weight[...], self.eps)


class Linear(nnx.Module):
    """y = x W^T without bias, weight [out, in] as published."""

    def __init__(self, out_size: int, in_size: int, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (out_size, in_size), dtype) * in_size**-0.5)

    def dense(self, dtype: jnp.dtype) -> Float[Array, "out in"]:
        return self.weight[...].astype(dtype)

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        return x @ self.dense(x.dtype).T


class PackedLinear(nnx.Module):
    """The same with INT4 weights: weight_packed int32 [out, in/8], weight_scale bfloat16 [out, in/32]."""

    def __init__(self, out_size: int, in_size: int, rounding: str, rngs: nnx.Rngs):
        packed = quantize(jax.random.normal(rngs.params(), (out_size, in_size)) * in_size**-0.5)
        self.weight_packed, self.weight_scale = nnx.Param(packed.packed), nnx.Param(packed.scale)
        self.rounding = rounding

    def dense(self, dtype: jnp.dtype) -> Float[Array, "out in"]:
        return dequantize(Int4(self.weight_packed[...], self.weight_scale[...]), self.rounding).astype(dtype)

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        return x @ self.dense(x.dtype).T


class Embedding(nnx.Module):
    """Token vectors, weight [V, M]; also the head of tied models."""

    def __init__(self, vocab_size: int, hidden_size: int, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (vocab_size, hidden_size), dtype) * 0.02)

    def __call__(self, ids: Int[Array, "B N"]) -> Float[Array, "B N M"]:
        return self.weight[...][ids]


class Linears:
    """Makes a model's linear layers: INT4 where the checkpoint is, plain elsewhere.

    ``packed`` holds the dotted paths, inside the model, of the layers whose weights are INT4; ``rounding`` is
    the dequantisation mode (see `jddtree.quantization.dequantize`).
    """

    def __init__(self, packed: frozenset[str], rounding: str, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.packed, self.rounding, self.dtype, self.rngs = packed, rounding, dtype, rngs

    def __call__(self, path: str, out_size: int, in_size: int) -> Linear | PackedLinear:
        if path in self.packed:
            return PackedLinear(out_size, in_size, self.rounding, self.rngs)
        return Linear(out_size, in_size, self.dtype, self.rngs)


class MLP(nnx.Module):
    """SwiGLU: down(silu(gate x) * up x)."""

    def __init__(self, path: str, hidden_size: int, intermediate_size: int, linears: Linears):
        self.gate_proj = linears(f"{path}.gate_proj", intermediate_size, hidden_size)
        self.up_proj = linears(f"{path}.up_proj", intermediate_size, hidden_size)
        self.down_proj = linears(f"{path}.down_proj", hidden_size, intermediate_size)

    def __call__(self, x: Float[Array, "... M"]) -> Float[Array, "... M"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))
