"""The Kimi K2.x text model: MLA attention, a dense first layer, routed INT4 experts (spec kimi section 2)."""

import jax.numpy as jnp
from flax import nnx

from jddtree import pipeline
from jddtree.config import KimiK2Config
from jddtree.models.causal import CausalModel
from jddtree.models.layers import MLP, Linears, RMSNorm
from jddtree.models.mla import LatentAttention
from jddtree.models.moe import MoE
from jddtree.models.target import Cache


class Layer(nnx.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: KimiK2Config, index: int, linears: Linears):
        path = f"layers.{index}"
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, linears.dtype)
        self.self_attn = LatentAttention(config, f"{path}.self_attn", linears)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, linears.dtype)
        if config.is_moe(index):
            self.mlp = MoE(config, f"{path}.mlp", linears)
        else:
            self.mlp = MLP(f"{path}.mlp", config.hidden_size, config.intermediate_size, linears)

    def __call__(self, x, slots, cache):
        """x [B, N, M] to x, this pass's latents [B, N, 1, R+P], chosen experts [B, N, K] or None."""
        s = slots
        attended, fresh = self.self_attn(self.input_layernorm(x), s.rope, s.mask, cache, s.lengths)
        x = x + attended
        normed = self.post_attention_layernorm(x)
        if isinstance(self.mlp, MoE):
            y, experts = self.mlp(normed, s.valid)
            return x + y, fresh, experts
        return x + self.mlp(normed), fresh, None


class KimiK2(CausalModel):
    """Parameter paths equal the published names, less their prefix, except stacked experts, k_up and v_up."""

    layer = Layer

    @property
    def rope_width(self) -> int:
        """The part of a key that carries positions."""
        return self.config.rope_head_dim

    def new_cache(self, rows: int, slots: int, dtype: jnp.dtype) -> Cache:
        """One latent [rows, slots, 1, R + P] a layer."""
        c = self.config
        shape = (rows, slots, 1, c.kv_lora_rank + c.rope_head_dim)
        return pipeline.new_caches(c, self.layers, lambda: jnp.zeros(shape, dtype))
