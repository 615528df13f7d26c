"""The models whose rounds are timed on one device, without weights."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from jddtree.config import read_json
from jddtree.errors import InputError
from jddtree.models.drafter import Drafter
from jddtree.models.target import Target
from jddtree.plan.memory import Holdings
from jddtree.plan.pair import CONFIGS, KIMI
from jddtree.sharding import ONE_DEVICE
from scripts.random_weights import shapes, with_layers

RANKS = 8
"""Devices that a layer of Kimi K2.6 is cut over; one's part is timed."""

QWEN3_4B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}

QWEN3_4B_DRAFTER: dict[str, Any] = QWEN3_4B | {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 5,
    "block_size": 16,
    "num_target_layers": 36,
    "dflash_config": {"mask_token_id": 151_669, "target_layer_ids": [1, 9, 17, 25, 33]},
}

TOY_QWEN3 = {
    "vocab_size": 256,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "rope_theta": 1e4,
}

TOY_KIMI = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
}

NAMES = ("k2.6-tp8", "qwen3-4b")


@dataclass(frozen=True)
class Models:
    """A target and its drafter, or a part of a target, as shapes.

    depth: positions that a round of it drafts, D.
    """

    target: Target
    drafter: Drafter | None
    dtype: jnp.dtype
    depth: int

    def holdings(self, slots: int) -> Holdings:
        """What one row with so many cache slots holds and reads."""
        return Holdings(self.target, self.drafter, ONE_DEVICE, 1, slots, self.dtype)


def models(name: str, layers: int | None, quick: bool) -> Models:
    """One of `NAMES`, with so many of its layers (None: all); ``quick``: narrow, in float32.

    Raises:
      InputError: it cannot have so few layers.
    """
    dtype = jnp.dtype(jnp.float32 if quick else jnp.bfloat16)
    raw: dict[str, Any]
    if name == "k2.6-tp8":
        raw, drafter, depth, least = dict(read_json(CONFIGS / f"{KIMI}.json")), None, 7, 2
        raw["text_config"] = _one_rank(raw["text_config"] | (TOY_KIMI if quick else {}))
    else:
        toy = TOY_QWEN3 if quick else {}
        raw, drafter, least = QWEN3_4B | toy, QWEN3_4B_DRAFTER | toy, 1
        depth = QWEN3_4B_DRAFTER["block_size"] - 1
        if quick:
            drafter["num_hidden_layers"] = 1
            drafter["dflash_config"] = QWEN3_4B_DRAFTER["dflash_config"] | {"mask_token_id": 255}
    if quick and layers is None:
        layers = 2
    if layers is not None:
        if layers < least:
            raise InputError(f"--layers must be {least} or more for {name}, not {layers}")
        raw, drafter = with_layers(raw, drafter, layers)
    target, drafts = shapes(raw, drafter, dtype)
    return Models(target, drafts, dtype, depth)


def _one_rank(text: dict[str, Any]) -> dict[str, Any]:
    """The config of what one rank of tp8 holds, as a model of its own: everything that is cut, an eighth."""
    cut = (
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "moe_intermediate_size",
        "vocab_size",
    )
    return text | {key: text[key] // RANKS for key in cut}
