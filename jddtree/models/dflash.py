"""DFlash: a block-diffusion drafter over the target's embeddings, features and head (spec section 1)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jddtree.config import DFlashConfig
from jddtree.models import gqa
from jddtree.models.layers import FLOAT32, MLP, Linears, RMSNorm, added, products, rope_tables
from jddtree.models.target import Cache, Target
from pallas_kernels.tree_attention.api import pack_mask


class Layer(nnx.Module):
    """A Qwen3 layer whose context keys and values come from the target's features."""

    def __init__(self, config: DFlashConfig, index: int, linears: Linears):
        path = f"layers.{index}"
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, linears.dtype)
        self.self_attn = gqa.GroupedQueryAttention(
            config, f"{path}.self_attn", linears, qk_norm=True, bias=False
        )
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, linears.dtype)
        self.mlp = MLP(f"{path}.mlp", config.hidden_size, config.intermediate_size, linears)
        self.window, self.causal = config.windows[index], config.causal

    def __call__(self, x, normed, following, rope, positions, cache, lengths):
        """x [B, G, M] and its norm by this layer to x and its norm by ``following``. Full layers see
        everything; sliding ones only i - j < window (spec 1.7).
        """
        slot = np.arange(x.shape[1])
        ahead = slot[None, :] - slot[:, None]
        visible, lower = np.ones_like(ahead, dtype=bool), None
        if self.window is not None:
            lower = positions - self.window + 1
            visible = (-ahead < self.window) & (ahead < (1 if self.causal else self.window))
        mask = pack_mask(visible[None])
        attended, _ = self.self_attn(normed, rope, mask, lower, cache, lengths)
        x, normed = added(self.self_attn.o_proj, attended, x, self.post_attention_layernorm)
        return added(self.mlp.down_proj, self.mlp.inner(normed), x, following)


class DFlash(nnx.Module):
    """Parameter paths equal the published names. ``packed``, ``rounding``: see KimiK2."""

    def __init__(
        self,
        config: DFlashConfig,
        *,
        packed: frozenset[str] = frozenset(),
        rounding: str = "bfloat16",
        dtype: jnp.dtype = FLOAT32,
        rngs: nnx.Rngs,
    ):
        linears = Linears(packed, rounding, dtype, rngs)
        self.config = config
        self.fc = linears("fc", config.hidden_size, config.hidden_size * len(config.target_layers))
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.layers = nnx.List([Layer(config, index, linears) for index in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)

    @property
    def block_size(self) -> int:
        """G: the anchor and D = G - 1 drafted positions."""
        return self.config.block_size

    @property
    def target_layers(self) -> tuple[int, ...]:
        """The target's layers whose outputs are the features, in order."""
        return self.config.target_layers

    @property
    def max_position(self) -> int:
        """Positions from here on cannot be drafted."""
        return self.config.max_position

    def new_cache(self, rows: int, slots: int, dtype: jnp.dtype) -> Cache:
        """Keys and values [rows, slots, J, head_dim] a layer."""
        return tuple(gqa.new_cache(self.config, rows, slots, dtype) for _ in self.layers)

    def context_feature(self, features: Float[Array, "B T FM"]) -> Float[Array, "B T M"]:
        """hidden_norm(fc(features)): one vector a context token, the same for every layer."""
        return self.hidden_norm(*products(features, (self.fc,)))

    def context(self, features: Float[Array, "B T FM"], positions: Int[Array, "B T"]) -> Cache:
        """Keys and values of context tokens, at the tokens' own positions."""
        x = self.context_feature(features)
        rope = rope_tables(self.config.rope, self.config.head_dim, positions)
        context = []
        for layer in self.layers:
            # Else XLA joins all layers' weights, in each round anew, to multiply x once. One barrier behind
            # the other, since those of the same x become one.
            x = jax.lax.optimization_barrier(x)
            context.append(layer.self_attn.keys_values(x, rope))
        return tuple(context)

    def block(
        self,
        embeddings: Float[Array, "B G M"],
        positions: Int[Array, "B G"],
        cache: Cache,
        lengths: Int[Array, " B"],
    ) -> tuple[Float[Array, "B G M"], tuple[Float[Array, "B G M"], ...]]:
        """The final norm's output for every slot, and every layer's output."""
        rope = rope_tables(self.config.rope, self.config.head_dim, positions)
        x, normed = embeddings, self.layers[0].input_layernorm(embeddings)
        norms = [*(layer.input_layernorm for layer in self.layers[1:]), self.norm]
        outputs = []
        for layer, following, layer_cache in zip(self.layers, norms, cache, strict=True):
            x, normed = layer(x, normed, following, rope, positions, layer_cache, lengths)
            outputs.append(x)
        return normed, tuple(outputs)

    def inputs(
        self, target: Target, anchor: Int[Array, " B"], lengths: Int[Array, " B"]
    ) -> tuple[Float[Array, "B G M"], Int[Array, "B G"]]:
        """Embeddings and positions of a block: slot 0 is the anchor, slots 1 .. D hold the mask token."""
        c = self.config
        masks = jnp.full((anchor.shape[0], c.block_size - 1), c.mask_token_id, jnp.int32)
        embeddings = target.embed(jnp.concatenate([anchor[:, None], masks], axis=1))
        if c.input_embedding_scale != 1.0:
            embeddings = embeddings * jnp.asarray(c.input_embedding_scale, embeddings.dtype)
        positions = lengths[:, None] + jnp.arange(c.block_size, dtype=jnp.int32)
        # Slots past the last position are never used; they only must not leave the range.
        return embeddings, jnp.minimum(positions, c.max_position - 1)

    def logits(self, target: Target, hidden: Float[Array, "B G M"]) -> Float[Array, "B D V"]:
        """`Target.logits` of slots 1 .. D."""
        c, logits = self.config, target.logits(hidden[:, 1:])
        if c.output_multiplier != 1.0:
            logits = logits * c.output_multiplier
        if c.final_logit_softcapping is not None:
            logits = c.final_logit_softcapping * jnp.tanh(logits / c.final_logit_softcapping)
        return logits

    def draft(
        self, target: Target, anchor: Int[Array, " B"], lengths: Int[Array, " B"], cache: Cache
    ) -> Float[Array, "B D V"]:
        """See `jddtree.models.drafter.Drafter`."""
        hidden, _ = self.block(*self.inputs(target, anchor, lengths), cache, lengths)
        return self.logits(target, hidden)
