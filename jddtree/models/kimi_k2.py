"""The Kimi K2.x text model: MLA attention, a dense first layer, routed INT4 experts (spec kimi section 2)."""

import jax.numpy as jnp
from flax import nnx

from jddtree import pipeline
from jddtree.config import KimiK2Config
from jddtree.models.causal import CausalModel
from jddtree.models.layers import MLP, Linears, RMSNorm, added
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

    def __call__(self, x, normed, following, slots, cache):
        """See `jddtree.pipeline.run_layers`; fresh are this pass's latents [B, N, 1, R+P]."""
        s = slots
        attended, fresh = self.self_attn(normed, s.rope, s.mask, cache, s.lengths)
        x, normed = added(self.self_attn.o_proj, attended, x, self.post_attention_layernorm)
        if not isinstance(self.mlp, MoE):
            x, normed = added(self.mlp.down_proj, self.mlp.inner(normed), x, following)
            return x, normed, fresh, None
        y, experts = self.mlp(normed, s.valid)
        x = x + y
        return x, following(x), fresh, experts


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
