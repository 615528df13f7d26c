"""Dense targets, tied or untied: Qwen3 and the Llama family."""

import jax.numpy as jnp
from flax import nnx

from jddtree import pipeline
from jddtree.config import DenseConfig
from jddtree.models import gqa
from jddtree.models.causal import CausalModel
from jddtree.models.layers import MLP, Linears, RMSNorm, added_unnormed
from jddtree.models.target import Cache
from pallas_kernels.tree_attention.api import pack_mask


class Layer(nnx.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: DenseConfig, index: int, linears: Linears):
        path = f"layers.{index}"
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, linears.dtype)
        self.self_attn = gqa.GroupedQueryAttention(
            config, f"{path}.self_attn", linears, qk_norm=config.qk_norm, bias=config.attention_bias
        )
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, linears.dtype)
        self.mlp = MLP(
            f"{path}.mlp", config.hidden_size, config.intermediate_size, linears, bias=config.mlp_bias
        )
        self.window = config.windows[index]

    def __call__(self, x, normed, following, slots, cache):
        """See `jddtree.pipeline.run_layers`."""
        lower, positions, mask = None, slots.positions, slots.mask
        if self.window is not None:
            # A query at position p sees the positions p - window + 1 .. p, in the cache and in the block.
            lower = positions - self.window + 1
            near = positions[:, :, None] - positions[:, None, :] < self.window
            mask = mask & pack_mask(near)
        attended, fresh = self.self_attn(normed, slots.rope, mask, lower, cache, slots.lengths)
        x, normed = added_unnormed(self.self_attn.o_proj, attended, x, self.post_attention_layernorm)
        x, normed = added_unnormed(self.mlp.down_proj, self.mlp.inner(normed), x, following)
        return x, normed, fresh, None


class Dense(CausalModel):
    """Parameter paths equal the published names without ``model.``."""

    layer = Layer

    @property
    def rope_width(self) -> int:
        """The whole head."""
        return self.config.head_dim

    def new_cache(self, rows: int, slots: int, dtype: jnp.dtype) -> Cache:
        """Keys and values [rows, slots, J, head_dim] a layer."""
        return pipeline.new_caches(
            self.config, self.layers, lambda: gqa.new_cache(self.config, rows, slots, dtype)
        )
