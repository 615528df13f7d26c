"""Grouped-query attention, shared by dense targets and the DFlash drafter."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, UInt32

from jddtree import sharding
from jddtree.config import DenseConfig, DFlashConfig
from jddtree.models.layers import Linear, Linears, PackedLinear, RMSNorm, products
from pallas_kernels.dense.unnormed import Unnormed
from pallas_kernels.rotary.api import rotate
from pallas_kernels.tree_attention.api import tree_attention

KeyValue = tuple[Float[Array, "B _ J Hd"], Float[Array, "B _ J Hd"]]
"""Keys as attention takes them (normalised where the model does, rotated), and values."""


def new_cache(config: DenseConfig | DFlashConfig, rows: int, slots: int, dtype: jnp.dtype) -> KeyValue:
    """Zeros: a layer's keys and values [rows, slots, J, head_dim]."""
    shape = (rows, slots, sharding.own_kv_heads(config.num_kv_heads), config.head_dim)
    return jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)


class GroupedQueryAttention(nnx.Module):
    """The projections, and attention over a cache and a block; callers say where keys come from.

    ``qk_norm``: queries and keys are normalised a head. ``bias``: of all four projections.
    """

    def __init__(
        self, config: DenseConfig | DFlashConfig, path: str, linears: Linears, *, qk_norm: bool, bias: bool
    ):
        c = config
        self.config = config
        self.q_proj = linears(f"{path}.q_proj", c.num_heads * c.head_dim, c.hidden_size, bias)
        self.k_proj = linears(f"{path}.k_proj", c.num_kv_heads * c.head_dim, c.hidden_size, bias)
        self.v_proj = linears(f"{path}.v_proj", c.num_kv_heads * c.head_dim, c.hidden_size, bias)
        self.o_proj = linears(f"{path}.o_proj", c.hidden_size, c.num_heads * c.head_dim, bias)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps, linears.dtype) if qk_norm else None
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps, linears.dtype) if qk_norm else None

    def keys_values(self, x: Float[Array, "B N M"], rope: tuple[Array, Array]) -> KeyValue:
        """Keys and values of tokens at the positions that ``rope`` was made for."""
        k, v = self._heads(x, (self.k_proj, self.v_proj))
        k, v = self._rotated((k,), v, (self.k_norm,), rope)
        return k, v

    def __call__(
        self,
        x: Float[Array, "B N M"] | Unnormed,
        rope: tuple[Array, Array],
        mask: UInt32[Array, "_ N W"],
        lower: Int[Array, "B N"] | None,
        cache: KeyValue,
        lengths: Int[Array, " B"],
    ) -> tuple[Float[Array, "B N _"], KeyValue]:
        """Attend over [cache ; x]: all heads' values side by side, for ``o_proj``, and x's own keys and
        values.
        """
        c = self.config
        # As in `jddtree.models.layers.MLP`.
        x = jax.lax.optimization_barrier(x)
        q, k, v = self._heads(x, (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = self._rotated((q, k), v, (self.q_norm, self.k_norm), rope)
        prefix_k, prefix_v, block_k, block_v = (self._read_by(q, heads) for heads in (*cache, k, v))
        attended = tree_attention(
            q, prefix_k, prefix_v, block_k, block_v, lengths, mask, lower=lower, scale=c.head_dim**-0.5
        )
        return attended.reshape(*q.shape[:2], -1), (k, v)

    def _heads(
        self, x: Float[Array, "B N M"] | Unnormed, linears: Sequence[Linear | PackedLinear]
    ) -> tuple[Float[Array, "B N _ Hd"], ...]:
        return tuple(y.reshape(*y.shape[:2], -1, self.config.head_dim) for y in products(x, linears))

    def _rotated(
        self,
        heads: tuple[Float[Array, "B N _ Hd"], ...],
        values: Float[Array, "B N _ Hd"],
        norms: tuple[RMSNorm | None, ...],
        rope: tuple[Array, Array],
    ) -> tuple[Float[Array, "B N _ Hd"], ...]:
        """Queries, keys and values as attention takes them, of those as projected."""
        weights = tuple(None if norm is None else norm.weight[...] for norm in norms)
        return rotate(heads, values, weights, *rope, eps=self.config.rms_norm_eps)

    def _read_by(self, q: Float[Array, "B N H Hd"], heads: Float[Array, "B _ J Hd"]) -> Array:
        """The key-value heads that this device's query heads read, of those that it holds."""
        group = self.config.num_heads // self.config.num_kv_heads
        needed = max(1, q.shape[2] // group)
        if heads.shape[2] == needed:
            return heads
        first = sharding.first_kv_head(q.shape[2], group, self.config.num_kv_heads)
        return jax.lax.dynamic_slice_in_dim(heads, first, needed, axis=2)
