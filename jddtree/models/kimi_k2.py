"""The Kimi K2.x text model: MLA attention, a dense first layer, routed INT4 experts (spec kimi section 2)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt32

from jddtree import pipeline
from jddtree.config import KimiK2Config
from jddtree.models.layers import FLOAT32, MLP, Embedding, Linears, RMSNorm, rope_tables
from jddtree.models.mla import LatentAttention
from jddtree.models.moe import MoE
from jddtree.models.target import Cache, Pass


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


class KimiK2(nnx.Module):
    """Parameter paths equal the published names, less their prefix, except stacked experts, k_up and v_up.

    ``packed``: dotted paths of INT4 linears, for example ``layers.1.mlp.experts.gate_proj``. ``rounding``:
    how INT4 becomes a number, "bfloat16" (the public library's way) or "float32".
    """

    def __init__(
        self,
        config: KimiK2Config,
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
        """One latent [rows, slots, 1, R + P] a layer."""
        c = self.config
        shape = (rows, slots, 1, c.kv_lora_rank + c.rope_head_dim)
        return pipeline.new_caches(c, self.layers, lambda: jnp.zeros(shape, dtype))

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
        rope = rope_tables(self.config.rope, self.config.rope_head_dim, positions)
        slots = pipeline.Slots(rope, positions, valid, mask, lengths)
        passed = pipeline.run_layers(self.config, self.layers, self.embed(ids), slots, cache, taps)
        return Pass(self.norm(passed.x), passed.features, passed.fresh, passed.experts)

    def logits(self, hidden: Float[Array, "B N M"]) -> Float[Array, "B N V"]:
        """The head, float32."""
        head = self.embed_tokens.weight[...] if self.config.tied else self.lm_head.dense(hidden.dtype)
        return jnp.einsum("bnm,vm->bnv", hidden, head, preferred_element_type=jnp.float32)
