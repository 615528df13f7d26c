"""Dense targets, tied or untied: Qwen3 and the Llama family."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt32

from jddtree import pipeline
from jddtree.config import DenseConfig
from jddtree.models import gqa
from jddtree.models.layers import FLOAT32, MLP, Embedding, Linears, RMSNorm, rope_tables
from jddtree.models.target import Cache, Pass
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

    def __call__(self, x, slots, cache):
        """x [B, N, M] to x, this pass's keys and values, and None for experts."""
        lower, positions, mask = None, slots.positions, slots.mask
        if self.window is not None:
            # A query at position p sees the positions p - window + 1 .. p, in the cache and in the block.
            lower = positions - self.window + 1
            near = positions[:, :, None] - positions[:, None, :] < self.window
            mask = mask & pack_mask(near)
        normed = self.input_layernorm(x)
        attended, fresh = self.self_attn(normed, slots.rope, mask, lower, cache, slots.lengths)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), fresh, None


class Dense(nnx.Module):
    """Parameter paths equal the published names without ``model.``. ``packed``, ``rounding``: see KimiK2."""

    def __init__(
        self,
        config: DenseConfig,
        *,
        packed: frozenset[str] = frozenset(),
        rounding: str = "bfloat16",
        dtype: jnp.dtype = FLOAT32,
        rngs: nnx.Rngs,
    ):
        linears = Linears(packed, rounding, dtype, rngs)
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype, rngs)
        self.layers = nnx.List([Layer(config, index, linears) for index in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        if not config.tied:
            self.lm_head = linears("lm_head", config.vocab_size, config.hidden_size)

    def new_cache(self, rows: int, slots: int, dtype: jnp.dtype) -> Cache:
        """Keys and values [rows, slots, J, head_dim] a layer."""
        return pipeline.new_caches(
            self.config, self.layers, lambda: gqa.new_cache(self.config, rows, slots, dtype)
        )

    def embed(self, ids: Int[Array, "B N"]) -> Float[Array, "B N M"]:
        """Token vectors."""
        return self.embed_tokens(ids)

    def __call__(
        self,
        ids: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        valid: Bool[Array, "B N"],
        mask: UInt32[Array, "_ N W"],
        cache: Cache,
        lengths: Int[Array, " B"],
        taps: tuple[int, ...],
    ) -> Pass:
        """See `jddtree.models.target.Target`. ``taps``: layers, from 0, whose outputs become features."""
        rope = rope_tables(self.config.rope, self.config.head_dim, positions)
        slots = pipeline.Slots(rope, positions, valid, mask, lengths)
        passed = pipeline.run_layers(self.config, self.layers, self.embed(ids), slots, cache, taps)
        return Pass(self.norm(passed.x), passed.features, passed.fresh, ())

    def logits(self, hidden: Float[Array, "B N M"]) -> Float[Array, "B N V"]:
        """The head, float32."""
        head = self.embed_tokens.weight[...] if self.config.tied else self.lm_head.dense(hidden.dtype)
        return jnp.einsum("bnm,vm->bnv", hidden, head, preferred_element_type=jnp.float32)
