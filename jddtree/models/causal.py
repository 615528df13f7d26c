"""What targets share: an embedding, layers one after another, a final norm and a head, tied or not."""

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from jddtree import pipeline
from jddtree.models.layers import FLOAT32, Embedding, Linears, RMSNorm, rope_tables
from jddtree.models.target import Cache, Pass
from pallas_kernels.dense.api import whole_slots


class CausalModel(nnx.Module):
    """A `jddtree.models.target.Target`, up to its cache. Parameter paths equal the published names, less
    their prefix.

    ``packed``: dotted paths of INT4 linears, for example ``layers.1.mlp.experts.gate_proj``. ``rounding``:
    how INT4 becomes a number, "bfloat16" (the public library's way) or "float32".
    """

    layer: ClassVar[Any]
    """The class of a layer: made of (config, index, linears), called as in `jddtree.pipeline.run_layers`."""

    def __init__(
        self,
        config: Any,
        *,
        packed: frozenset[str] = frozenset(),
        rounding: str = "bfloat16",
        dtype: jnp.dtype = FLOAT32,
        rngs: nnx.Rngs,
    ):
        linears = Linears(packed, rounding, dtype, rngs)
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype, rngs)
        self.layers = nnx.List([self.layer(config, index, linears) for index in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        if not config.tied:
            self.lm_head = linears("lm_head", config.vocab_size, config.hidden_size)

    @property
    def rope_width(self) -> int:
        """Channels of a head that are rotated."""
        raise NotImplementedError

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
        """See `jddtree.models.target.Target`. ``taps``: layers, from 0, whose outputs become features. A few
        slots that nobody sees may go along, for kernels' sake.
        """
        rows, count = ids.shape
        more = whole_slots(pipeline.rows_at_once(rows), count, self.norm.weight.dtype) - count

        def wider(x: Shaped[Array, "_ N ..."]) -> Shaped[Array, "_ wide ..."]:
            return jnp.pad(x, ((0, 0), (0, more), *((0, 0) for _ in x.shape[2:])))

        ids, positions, mask = map(wider, (ids, positions, mask))
        rope = rope_tables(self.config.rope, self.rope_width, positions)
        slots = pipeline.Slots(rope, positions, valid, mask, lengths)
        return pipeline.run_layers(self.config, self.layers, self.norm, self.embed(ids), slots, cache, taps)

    def logits(self, hidden: Float[Array, "B N M"]) -> Float[Array, "B N V"]:
        """The head, float32."""
        head = self.embed_tokens.weight[...] if self.config.tied else self.lm_head.dense(hidden.dtype)
        return jnp.einsum("bnm,vm->bnv", hidden, head, preferred_element_type=jnp.float32)
