"""Sizes of a pair, as the raw `config.json` objects that its two folders get (Kimi K2.6 and DFlash
layouts).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jddtree.config import TargetConfig, text_config
from scripts.pair.documents import Special


@dataclass(frozen=True)
class Shape:
    """A drafter's. Taps are target layers counted from 0; the last layer is no tap, since some engines hand
    out its normed output. width: of the MLP. INT4 needs widths that are multiples of 32.
    """

    layers: int
    block: int
    taps: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    width: int


@dataclass(frozen=True)
class Size:
    """What differs between bundled pairs."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    dense_width: int
    experts: int
    experts_per_token: int
    expert_width: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    drafter: Shape

    @property
    def special(self) -> Special:
        return Special(self.vocab - 256)


SIZES = {
    # 26.2 MB of target (experts INT4, the rest bf16) and 7.2 MB of INT4 drafter.
    "mini": Size(
        vocab=6144,
        hidden=320,
        layers=6,
        heads=8,
        dense_width=1024,
        experts=16,
        experts_per_token=4,
        expert_width=256,
        q_rank=128,
        kv_rank=64,
        nope_dim=32,
        rope_dim=16,
        value_dim=32,
        drafter=Shape(5, 8, (1, 2, 3, 4), heads=8, kv_heads=4, head_dim=64, width=2048),
    ),
    # Seconds on a CPU: for tests and for trying the scripts.
    "toy": Size(
        vocab=640,
        hidden=32,
        layers=3,
        heads=4,
        dense_width=64,
        experts=8,
        experts_per_token=2,
        expert_width=32,
        q_rank=16,
        kv_rank=16,
        nope_dim=8,
        rope_dim=8,
        value_dim=8,
        drafter=Shape(2, 4, (0, 1), heads=4, kv_heads=2, head_dim=8, width=64),
    ),
}


def target_json(size: Size) -> dict[str, Any]:
    """`config.json` of the target in K2.6's nested layout, without vision."""
    special = size.special
    ids = {"bos_token_id": special.base, "eos_token_id": special.end_of_turn, "pad_token_id": special.pad}
    text = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        **ids,
        "dtype": "bfloat16",
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "initializer_range": 0.02,
        "intermediate_size": size.dense_width,
        "kv_lora_rank": size.kv_rank,
        "max_position_embeddings": 262144,
        "model_type": "kimi_k2",
        "moe_intermediate_size": size.expert_width,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": size.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": size.heads,
        "num_experts_per_tok": size.experts_per_token,
        "num_hidden_layers": size.layers,
        "num_key_value_heads": size.heads,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": size.q_rank,
        "qk_nope_head_dim": size.nope_dim,
        "qk_rope_head_dim": size.rope_dim,
        "quantization_config": int4_json(
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*",
            "re:vision_tower.*",
            "re:mm_projector.*",
        ),
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 64.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 50000.0,
        "routed_scaling_factor": 2.827,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "v_head_dim": size.value_dim,
        "vocab_size": size.vocab,
    }
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        **ids,
        "dtype": "bfloat16",
        "ignore_index": -100,
        "model_type": "kimi_k25",
        "text_config": text,
        "tie_word_embeddings": False,
    }


def generation_json(size: Size) -> dict[str, Any]:
    """`generation_config.json`: the chat's stop token."""
    return {"bos_token_id": size.special.base, "eos_token_id": size.special.end_of_turn, "max_length": 262144}


def int4_json(*ignore: str) -> dict[str, Any]:
    """`quantization_config` of linear layers in INT4, groups of 32, but those that ``ignore`` names."""
    weights = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": 32,
        "num_bits": 4,
        "observer": "minmax",
        "observer_kwargs": {},
        "strategy": "group",
        "symmetric": True,
        "type": "int",
    }
    return {
        "config_groups": {
            "group_0": {
                "input_activations": None,
                "output_activations": None,
                "targets": ["Linear"],
                "weights": weights,
            }
        },
        "format": "pack-quantized",
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def default_shape(config: TargetConfig) -> Shape:
    """The drafter of a bundled size, or for another target: 4 layers, blocks of 8, taps from the second layer
    to the last but one, heads of 64 or 128, an MLP of twice the width.
    """
    for size in SIZES.values():
        if (size.vocab, size.hidden, size.layers) == (
            config.vocab_size,
            config.hidden_size,
            config.num_layers,
        ):
            return size.drafter
    hidden, last = config.hidden_size, max(config.num_layers - 2, 0)
    count = min(5, max(last, 1))
    first = min(1, last)
    taps = tuple(round(first + i * (last - first) / max(count - 1, 1)) for i in range(count))
    head_dim = 128 if hidden >= 2048 else 64
    heads = max(1, hidden // head_dim)
    kv_heads = next(heads // group for group in (4, 3, 2, 1) if heads % group == 0)
    return Shape(4, 8, taps, heads, kv_heads, head_dim, 2 * hidden)


def drafter_json(target: Mapping[str, Any], config: TargetConfig, shape: Shape, mask: int) -> dict[str, Any]:
    """`config.json` of a drafter in the DFlash layout, for the target of ``config`` (raw: ``target``)."""
    text = text_config(target)
    return {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": shape.block,
        "bos_token_id": text.get("bos_token_id"),
        "dflash_config": {"mask_token_id": mask, "target_layer_ids": list(shape.taps)},
        "dtype": "bfloat16",
        "eos_token_id": text.get("eos_token_id"),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.width,
        "layer_types": ["full_attention"] * shape.layers,
        "max_position_embeddings": config.max_position,
        "max_window_layers": shape.layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "num_target_layers": config.num_layers,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.vocab_size,
    }
