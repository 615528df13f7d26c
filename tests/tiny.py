"""Tiny random models: as published configs (plain dictionaries to copy and change), and built."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jddtree.config import DFlashConfig, KimiK2Config, drafter_config, target_config
from jddtree.decoder import Decoder, Task
from jddtree.finish import Generation
from jddtree.models.dense import Dense
from jddtree.models.dflash import DFlash
from jddtree.models.drafter import Drafter
from jddtree.models.kimi_k2 import KimiK2
from jddtree.models.target import Target
from jddtree.state import GREEDY_ONLY, Method, Options
from jddtree.tokenizer import Tokenizer
from pallas_kernels.tree_attention.api import causal_mask
from tests.oracles.plain_decode import plain_decode

TRAINED = Path(__file__).parent / "data" / "goldens" / "e2e" / "tiny_a"
"""A small trained pair in published form, with the reference's runs."""

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 400,
    "tie_word_embeddings": False,
}

YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}

KIMI = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "intermediate_size": 32,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": YARN,
    "max_position_embeddings": 400,
    "tie_word_embeddings": False,
}

DFLASH = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 400,
    "block_size": 4,
    "num_target_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 6,
    "dflash_config": {"mask_token_id": 49, "target_layer_ids": [0, 1]},
}

EXPERTS = frozenset(f"layers.1.mlp.experts.{name}_proj" for name in ("gate", "up", "down"))


def target(raw: dict, *, seed: int = 0) -> KimiK2 | Dense:
    """A random float32 target; Kimi's routed experts are INT4."""
    config = target_config(raw)
    if isinstance(config, KimiK2Config):
        model = KimiK2(config, packed=EXPERTS, rngs=nnx.Rngs(seed))
    else:
        model = Dense(config, rngs=nnx.Rngs(seed))
    # Embeddings as loud as what the layers add: else the text falls into a loop of one token.
    model.embed_tokens.weight.set_value(model.embed_tokens.weight[...] * 50)
    return model


def drafter(raw: dict = DFLASH, *, seed: int = 1) -> DFlash:
    """A random float32 drafter."""
    return DFlash(drafter_config(raw), rngs=nnx.Rngs(seed))


def decoder(
    target: Target,
    drafter: Drafter | None,
    method: Method,
    *,
    rows: int = 1,
    slots: int = 64,
    rounds: int = 8,
    options: Options = GREEDY_ONLY,
) -> Decoder:
    """A float32 decoder whose programs mix no dtypes; a prefill size is traced on its first use."""
    with jax.numpy_dtype_promotion("strict"):
        return Decoder(
            target,
            drafter,
            method,
            rows=rows,
            slots=slots,
            dtype=jnp.dtype(jnp.float32),
            options=options,
            rounds=rounds,
        )


def decode(
    decoder: Decoder, prompts, *, max_new: int, stop_ids=(), topk=None, max_context=None
) -> list[Generation]:
    """The finished rows of greedy prompts that wish the same."""
    return run(
        decoder,
        [
            Task(prompt, max_new=max_new, stop_ids=stop_ids, topk=topk, max_context=max_context)
            for prompt in prompts
        ],
    )


def run(decoder: Decoder, tasks: Sequence[Task], tokenizer: Tokenizer | None = None) -> list[Generation]:
    """The finished rows."""
    with jax.numpy_dtype_promotion("strict"):
        *_, rows = decoder.decode(tasks, tokenizer)
    return rows


def write_tokenizer(folder: Path, tokens: Sequence[bytes]) -> None:
    """A tokenizer of Kimi's layout: token i is ``tokens[i]``, single bytes that are missing come after."""
    ranks = [*tokens, *(bytes([byte]) for byte in range(256) if bytes([byte]) not in tokens)]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(ranks)]
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {}}')


def plain(target: Target, prompt: list[int], count: int) -> list[int]:
    """Greedy text without a cache."""
    tokens, gap = plain_decode(lambda ids: forward(target, ids)[-1], prompt, count)
    assert gap > 1e-4, "two tokens nearly tie: the choice of prompt tests nothing"
    return tokens


@partial(jax.tree_util.register_dataclass, data_fields=["inner", "table", "scripted"], meta_fields=[])
@dataclass(frozen=True)
class Scripted:
    """A drafter whose rows may follow a script: where ``scripted`` [B], the logits of position p are
    ``table`` [B, T, V] at p. Other rows are ``inner``'s.
    """

    inner: DFlash
    table: jax.Array
    scripted: jax.Array

    @property
    def config(self) -> DFlashConfig:
        return self.inner.config

    @property
    def block_size(self) -> int:
        return self.inner.block_size

    @property
    def target_layers(self) -> tuple[int, ...]:
        return self.inner.target_layers

    @property
    def max_position(self) -> int:
        return self.inner.max_position

    def new_cache(self, rows, slots, dtype):
        return self.inner.new_cache(rows, slots, dtype)

    def context(self, features, positions):
        return self.inner.context(features, positions)

    def draft(self, target, anchor, lengths, cache):
        drafted = self.inner.draft(target, anchor, lengths, cache)
        places = lengths[:, None] + 1 + jnp.arange(self.block_size - 1, dtype=jnp.int32)
        places = jnp.minimum(places, self.table.shape[1] - 1)
        written = jnp.take_along_axis(self.table, places[..., None], axis=1)
        return jnp.where(self.scripted[:, None, None], written, drafted)


def forward(target: Target, ids: np.ndarray) -> np.ndarray:
    """Logits [T, V] of one causal pass over ids [T], nothing cached: the plain truth for every prefix."""
    size = max(64, 1 << (len(ids) - 1).bit_length())
    padded = np.zeros((1, size), np.int32)
    padded[0, : len(ids)] = ids
    return np.asarray(_forward(target, padded)[0, : len(ids)])


@jax.jit
def _forward(target: Target, ids: jax.Array) -> jax.Array:
    size = ids.shape[1]
    positions = jnp.arange(size, dtype=jnp.int32)[None]
    empty = target.new_cache(1, 1, jnp.dtype(jnp.float32))
    nothing = jnp.zeros((1,), jnp.int32)
    valid = jnp.ones(ids.shape, bool)
    return target.logits(target(ids, positions, valid, causal_mask(size), empty, nothing, ()).hidden)
