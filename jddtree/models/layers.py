"""Parts that every model shares: norms, rotary positions, linear layers, the dense MLP."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from jddtree import sharding
from jddtree.config import Llama3Rope, Rope
from jddtree.quantization import dequantize, quantize
from pallas_kernels import device
from pallas_kernels.dense import api as dense
from pallas_kernels.dense.unnormed import Unnormed
from pallas_kernels.grouped_matmul.api import Int4
from pallas_kernels.norm import rms_norm
from pallas_kernels.rotation import rotated

FLOAT32 = jnp.dtype(jnp.float32)


def inverse_frequencies(rope: Rope, dim: int) -> np.ndarray:
    """Angles a position, float32 [dim / 2]: theta^(-2j/dim), stretched by YaRN's ramp (spec kimi 2.4) or as
    Llama 3 does.
    """
    # Rounded to float32 where the public code rounds: at position 9,000 one last place is half a milliradian.
    one, exponents = np.float32(1), np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    powers = (rope.theta ** exponents.astype(np.float64)).astype(np.float32)
    yarn = rope.scaling
    if yarn is None:
        return one / powers
    if isinstance(yarn, Llama3Rope):
        return _llama3(one / powers, yarn)

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


def _llama3(frequencies: np.ndarray, scaling: Llama3Rope) -> np.ndarray:
    """As the public code has it: where ``turns``, the turns within the original context, are below
    low_freq_factor the frequency is divided by ``factor``, above high_freq_factor it is kept, between mixed.
    """
    s, pi2 = scaling, np.float32(2 * math.pi)
    turns = np.float32(s.original_max_position) / (pi2 / frequencies)
    kept = np.clip((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0, 1)
    kept = kept.astype(np.float32)
    return (1 - kept) * frequencies / np.float32(s.factor) + kept * frequencies


def rope_tables(
    rope: Rope, dim: int, positions: Int[Array, "B N"]
) -> tuple[Float[Array, "B N half"], Float[Array, "B N half"]]:
    """cos and sin of every position, float32, with YaRN's amplitude applied."""
    angles = positions[..., None].astype(jnp.float32) * inverse_frequencies(rope, dim)
    return jnp.cos(angles) * rope.amplitude, jnp.sin(angles) * rope.amplitude


def _rotate(low: Array, high: Array, cos: Array, sin: Array, dtype: jnp.dtype) -> Array:
    """Rotate the pairs (low, high) of [B, N, H, dim/2]; the halves come back side by side."""
    low, high = low.astype(jnp.float32), high.astype(jnp.float32)
    cos, sin = cos[:, :, None], sin[:, :, None]
    return jnp.concatenate(rotated(low, high, cos, sin), axis=-1).astype(dtype)


def rotate_halves(x: Float[Array, "B N H dim"], cos: Array, sin: Array) -> Float[Array, "B N H dim"]:
    """Rotary positions with pair j = channels (j, j + dim/2): dense models and DFlash."""
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
    """y = x W^T, plus a bias [out] where the model has one; weight [out, in] as published."""

    def __init__(self, out_size: int, in_size: int, dtype: jnp.dtype, rngs: nnx.Rngs, *, bias: bool = False):
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (out_size, in_size), dtype) * in_size**-0.5)
        self.bias = nnx.Param(jnp.zeros((out_size,), dtype)) if bias else None

    def dense(self, dtype: jnp.dtype) -> Float[Array, "out in"]:
        return self.weight[...].astype(dtype)

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        return _biased(x @ self.dense(x.dtype).T, self.bias)

    def joined(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        """The same where ``in`` is cut over devices: their sum."""
        return _biased(sharding.total(x @ self.dense(x.dtype).T), self.bias)


class PackedLinear(nnx.Module):
    """The same with INT4 weights: weight_packed int32 [out, in/8], weight_scale bfloat16 [out, in/32]."""

    def __init__(
        self,
        out_size: int,
        in_size: int,
        rounding: str,
        rngs: nnx.Rngs,
        *,
        bias: jnp.dtype | None = None,
    ):
        packed = quantize(jax.random.normal(rngs.params(), (out_size, in_size)) * in_size**-0.5)
        self.weight_packed, self.weight_scale = nnx.Param(packed.packed), nnx.Param(packed.scale)
        self.bias = None if bias is None else nnx.Param(jnp.zeros((out_size,), bias))
        self.rounding = rounding

    def dense(self, dtype: jnp.dtype) -> Float[Array, "out in"]:
        return dequantize(Int4(self.weight_packed[...], self.weight_scale[...]), self.rounding).astype(dtype)

    def unpacked(self, dtype: jnp.dtype) -> Linear:
        """The layer that gives the same, with its weights in ``dtype``."""
        out_size, words = self.weight_packed.shape
        has_bias = self.bias is not None
        linear = nnx.eval_shape(lambda: Linear(out_size, 8 * words, dtype, nnx.Rngs(0), bias=has_bias))
        linear.weight.set_value(self.dense(dtype))
        if self.bias is not None and linear.bias is not None:
            linear.bias.set_value(self.bias[...].astype(dtype))
        return linear

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        return _biased(x @ self.dense(x.dtype).T, self.bias)

    def joined(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        """See `Linear`."""
        return _biased(sharding.total(x @ self.dense(x.dtype).T), self.bias)


def _biased(y: Array, bias: nnx.Param | None) -> Array:
    return y if bias is None else y + bias[...].astype(y.dtype)


def norm_of(x: Float[Array, "... M"] | Unnormed) -> Float[Array, "... M"]:
    """The norm that `added_unnormed` gave or left."""
    return x.normed()[None] if isinstance(x, Unnormed) else x


def _flat(
    x: Float[Array, "... M"] | Unnormed,
) -> tuple[Float[Array, "T M"] | Unnormed, tuple[int, ...]]:
    """Tokens as dense operations take them, and the shape that they have in x: rows and slots, mostly."""
    if isinstance(x, Unnormed):
        return x, (1, 1)
    return x.reshape(-1, x.shape[-1]), x.shape[:-1]


def products(
    x: Float[Array, "... in"] | Unnormed, linears: Sequence[Linear | PackedLinear]
) -> tuple[Float[Array, "... _"], ...]:
    """Every layer's output for one input."""
    tokens, slots = _flat(x)
    found = dense.products(tokens, tuple(linear.dense(x.dtype) for linear in linears))
    return tuple(
        _biased(y.reshape(*slots, -1), linear.bias) for y, linear in zip(found, linears, strict=True)
    )


def added(
    linear: Linear | PackedLinear,
    x: Float[Array, "B N in"],
    residual: Float[Array, "B N out"],
    norm: RMSNorm,
) -> tuple[Float[Array, "B N out"], Float[Array, "B N out"]]:
    """residual + `Linear.joined` of x, and ``norm`` of that."""
    total, after = added_unnormed(linear, x, residual, norm)
    return total, norm_of(after)


def added_unnormed(
    linear: Linear | PackedLinear,
    x: Float[Array, "B N in"],
    residual: Float[Array, "B N out"],
    norm: RMSNorm,
) -> tuple[Float[Array, "B N out"], Float[Array, "B N out"] | Unnormed]:
    """The same, where a single token's norm may be left to `products` or `MLP.inner`."""
    if linear.bias is not None or sharding.width_axes():
        total = residual + linear.joined(x)
        return total, norm(total)
    flat, stream = (each.reshape(-1, each.shape[-1]) for each in (x, residual))
    total, after = dense.added(
        flat, linear.dense(x.dtype), stream, norm.weight[...], eps=norm.eps, unnormed=True
    )
    if not isinstance(after, Unnormed):
        after = after.reshape(residual.shape)
    return total.reshape(residual.shape), after


def unpack_linears(model: nnx.Module, dtype: jnp.dtype, placed: Callable[[str, Array], Array]) -> None:
    """Replace every `PackedLinear` in ``model`` by its `Linear`, dequantised once. ``placed`` puts a weight,
    given with its dotted path, where it belongs.

    Such layers read all their weights in every pass, and unpacking costs more than the bytes it saves. Routed
    experts are not among them: of those a pass reads few, and they stay packed.
    """
    for path, module in list(nnx.iter_modules(model)):
        for name, child in list(vars(module).items()):
            if isinstance(child, PackedLinear):
                linear = child.unpacked(dtype)
                where = ".".join(map(str, (*path, name, "weight")))
                linear.weight.set_value(placed(where, linear.weight[...]))
                setattr(module, name, linear)


class Embedding(nnx.Module):
    """Token vectors, weight [V, M]; also the head of tied models."""

    def __init__(self, vocab_size: int, hidden_size: int, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (vocab_size, hidden_size), dtype) * 0.02)

    def __call__(self, ids: Int[Array, "B N"]) -> Float[Array, "B N M"]:
        axes = sharding.width_axes()
        if not axes:
            return self.weight[...][ids]
        own = sharding.own_part(ids, self.weight.shape[0], axes)
        vectors = jnp.where(own[..., None] >= 0, self.weight[...][jnp.maximum(own, 0)], 0)
        return sharding.total(vectors)


class Linears:
    """Makes a model's linear layers: INT4 where the checkpoint is, plain elsewhere.

    ``packed`` holds the dotted paths, inside the model, of the layers whose weights are INT4; ``rounding`` is
    the dequantisation mode (see `jddtree.quantization.dequantize`).
    """

    def __init__(self, packed: frozenset[str], rounding: str, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.packed, self.rounding, self.dtype, self.rngs = packed, rounding, dtype, rngs

    def __call__(self, path: str, out_size: int, in_size: int, bias: bool = False) -> Linear | PackedLinear:
        if path in self.packed:
            return PackedLinear(
                out_size, in_size, self.rounding, self.rngs, bias=self.dtype if bias else None
            )
        return Linear(out_size, in_size, self.dtype, self.rngs, bias=bias)


class MLP(nnx.Module):
    """SwiGLU: down(silu(gate x) * up x). Its ``gate_proj`` and ``up_proj`` are as published, or one parameter
    ``gate_up`` [2, F, M] in their place, the gate first (`join_mlps`).
    """

    def __init__(
        self, path: str, hidden_size: int, intermediate_size: int, linears: Linears, bias: bool = False
    ):
        self.gate_proj = linears(f"{path}.gate_proj", intermediate_size, hidden_size, bias)
        self.up_proj = linears(f"{path}.up_proj", intermediate_size, hidden_size, bias)
        self.down_proj = linears(f"{path}.down_proj", hidden_size, intermediate_size, bias)

    def __call__(self, x: Float[Array, "... M"]) -> Float[Array, "... M"]:
        return self.down_proj.joined(self.inner(x))

    def inner(self, x: Float[Array, "... M"] | Unnormed) -> Float[Array, "... _"]:
        """What ``down_proj`` multiplies."""
        # Else a single token's norm is worked out anew in either product, and they in kernels of their own.
        x = jax.lax.optimization_barrier(x)
        if hasattr(self, "gate_up"):
            tokens, slots = _flat(x)
            return dense.swiglu(tokens, self.gate_up[...].astype(x.dtype)).reshape(*slots, -1)
        x = norm_of(x)
        return jax.nn.silu(self.gate_proj(x)) * self.up_proj(x)

    def join(self, place: Callable[[str], NamedSharding] | None) -> None:
        """Hold gate and up as ``gate_up`` from now on, every device its own parts, unless they are INT4 or
        have biases; ``place`` as in `join_mlps`.
        """
        gate, up, join = self.gate_proj, self.up_proj, _join
        if not isinstance(gate, Linear) or not isinstance(up, Linear) or gate.bias is not None:
            return
        if place is not None:
            read, written = place("gate_proj.weight"), place("gate_up")
            join = _join_on_mesh(read.mesh, read.spec, written.spec)
        # Waited for: weights of layers to come, joined before these are let go, would fill the device.
        gate_up = jax.block_until_ready(join(gate.weight[...], up.weight[...]))
        del self.gate_proj, self.up_proj
        self.gate_up = nnx.Param(gate_up)


@jax.jit
def _join(gate: Float[Array, "F M"], up: Float[Array, "F M"]) -> Float[Array, "2 F M"]:
    return jnp.stack([gate, up])


@cache
def _join_on_mesh(mesh: Mesh, read: PartitionSpec, written: PartitionSpec) -> Callable:
    """`_join` of every device's own parts; layers alike share one program."""
    return jax.jit(jax.shard_map(_join, mesh=mesh, in_specs=(read, read), out_specs=written, check_vma=False))


def join_mlps(model: nnx.Module, place: Callable[[str], NamedSharding] | None = None) -> None:
    """Where the program is for a GPU, hold gate and up of every `MLP` of plain layers without biases as one
    array, an MLP at a time. ``place`` gives, over a mesh, where the array at a dotted path lies.

    XLA would make one product of both anyway, in a fusion that concatenates their weights and for which
    cuBLAS, faster over many tokens, is no candidate.
    """
    if not device.is_gpu():
        return
    found = [(path, module) for path, module in nnx.iter_modules(model) if isinstance(module, MLP)]
    for path, module in found:
        # Those XLA joins with the router: see `jddtree.models.moe.MoE`.
        if path[-1:] == ("shared_experts",):
            continue
        at = ".".join(map(str, path))
        module.join(place and (lambda name, at=at: place(f"{at}.{name}")))
