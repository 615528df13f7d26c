"""Multi-head latent attention in absorbed form (spec kimi 2.2 to 2.4).

The cache holds one latent head a token: [R normed latent | P rotated key], so that N x H query rows share
every read.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, UInt32

from jddtree.config import KimiK2Config
from jddtree.models.layers import Linears, RMSNorm, products, rotate_pairs
from pallas_kernels.latent.api import prepare
from pallas_kernels.tree_attention.api import tree_attention


class LatentAttention(nnx.Module):
    """MLA. ``k_up`` [H, n, R] and ``v_up`` [H, v, R] are the two parts of the published kv_b_proj."""

    def __init__(self, config: KimiK2Config, path: str, linears: Linears):
        c, dtype = config, linears.dtype
        self.config = config
        self.q_a_proj = linears(f"{path}.q_a_proj", c.q_lora_rank, c.hidden_size)
        self.q_a_layernorm = RMSNorm(c.q_lora_rank, c.lora_norm_eps, dtype)
        self.q_b_proj = linears(
            f"{path}.q_b_proj", c.num_heads * (c.nope_head_dim + c.rope_head_dim), c.q_lora_rank
        )
        self.kv_a_proj_with_mqa = linears(
            f"{path}.kv_a_proj_with_mqa", c.kv_lora_rank + c.rope_head_dim, c.hidden_size
        )
        self.kv_a_layernorm = RMSNorm(c.kv_lora_rank, c.lora_norm_eps, dtype)
        up = jax.random.normal(
            linears.rngs.params(), (c.num_heads, c.nope_head_dim + c.v_head_dim, c.kv_lora_rank), dtype
        )
        up = up * c.kv_lora_rank**-0.5
        self.k_up = nnx.Param(up[:, : c.nope_head_dim])
        self.v_up = nnx.Param(up[:, c.nope_head_dim :])
        self.o_proj = linears(f"{path}.o_proj", c.hidden_size, c.num_heads * c.v_head_dim)

    def __call__(
        self,
        x: Float[Array, "B N M"],
        rope: tuple[Array, Array],
        mask: UInt32[Array, "_ N W"],
        cache: Float[Array, "B S 1 RP"],
        lengths: Int[Array, " B"],
    ) -> tuple[Float[Array, "B N _"], Float[Array, "B N 1 RP"]]:
        """Attend: all heads' values side by side, for ``o_proj``, and this pass's own latents."""
        c = self.config
        rows, slots, _ = x.shape
        low, latents = products(x, (self.q_a_proj, self.kv_a_proj_with_mqa))
        q_low, fresh = prepare(
            low,
            latents,
            self.q_a_layernorm.weight[...],
            self.kv_a_layernorm.weight[...],
            *rope,
            eps=c.lora_norm_eps,
        )
        q = self.q_b_proj(q_low).reshape(rows, slots, -1, c.nope_head_dim + c.rope_head_dim)
        q_nope, q_rope = q[..., : c.nope_head_dim], rotate_pairs(q[..., c.nope_head_dim :], *rope)
        fresh = fresh[:, :, None]
        absorbed = jnp.einsum("bnhd,hdr->hbnr", q_nope, self.k_up[...]).transpose(1, 2, 0, 3)
        # Of a single token XLA multiplies and joins in one kernel, which takes as long as three.
        absorbed = jax.lax.optimization_barrier(absorbed)
        query = jnp.concatenate([absorbed, q_rope], axis=-1)
        attended = tree_attention(
            query, cache, None, fresh, None, lengths, mask, scale=c.softmax_scale, value_width=c.kv_lora_rank
        )
        out = jnp.einsum("bnhr,hvr->hbnv", attended, self.v_up[...]).transpose(1, 2, 0, 3)
        return out.reshape(rows, slots, -1), fresh
