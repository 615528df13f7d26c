"""Reference data for single parts of Kimi K2: INT4 weights, rotary tables, router groups, tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.flax import load_file

from jddtree.compare.checks import Case, Cases, read_facts, reading
from jddtree.config import KimiK2Config, target_config
from jddtree.models import layers
from jddtree.models.moe import Router
from jddtree.quantization import dequantize
from jddtree.tokenizer import load_tokenizer
from pallas_kernels.grouped_matmul.api import Int4

INVERSE_FREQUENCY_LIMIT = 1.5e-7
"""Relative: one unit in the last place of float32."""

ANGLE_LIMIT = 2e-7
"""Error of cos and sin in units of max(angle, 1): an angle in float32 is known to 6e-8 of itself."""

ROUTER_LIMIT = 1e-5

SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "q_lora_rank", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "intermediate_size", "moe_intermediate_size"),
    *("n_routed_experts", "num_experts_per_tok", "n_shared_experts", "n_group", "topk_group"),
    *("routed_scaling_factor", "first_k_dense_replace", "max_position_embeddings", "norm_topk_prob"),
)


def expert_dequant(path: Path) -> Cases:
    """Packed weights to numbers, exactly, in both rounding modes; a case is a projection of an expert."""
    with reading(path):
        tensors = load_file(path)
    for name in sorted({key.rpartition(".")[0] for key in tensors}):

        def body(case: Case, name: str = name) -> None:
            packed, scale = tensors[f"{name}.weight_packed"], tensors[f"{name}.weight_scale"]
            case.equal(
                "q", dequantize(Int4(packed, jnp.ones_like(scale)), "float32"), tensors[f"{name}.q_int8"]
            )
            for mode, expected in (("bfloat16", "dequant_bf16"), ("float32", "dequant_f32_exact")):
                value = dequantize(Int4(packed, scale), mode)
                case.equal(f"{mode} dtype", value.dtype == tensors[f"{name}.{expected}"].dtype, True)
                case.equal(mode, value, tensors[f"{name}.{expected}"])

        yield name, body


def rope_tables(path: Path) -> Cases:
    """Frequencies, cos, sin, amplitude and softmax scale of every configuration in the JSON beside it."""
    with reading(path):
        tensors = load_file(path)
    for name, entry in read_facts(path.with_suffix(".json")).items():

        def body(case: Case, name: str = name, entry: dict[str, Any] = entry) -> None:
            dim, scaling = entry["dim"], entry.get("rope_scaling")
            config = _kimi(
                qk_rope_head_dim=dim,
                qk_nope_head_dim=max(entry["qk_head_dim"] - dim, 1),
                rope_theta=entry["theta"],
                rope_scaling=scaling,
            )
            frequencies = np.asarray(tensors[f"{name}.inv_freq"])
            relative = layers.inverse_frequencies(config.rope, dim) / frequencies
            case.close("inv_freq", relative, np.ones_like(relative), INVERSE_FREQUENCY_LIMIT)
            positions = tensors[f"{name}.positions"]
            cos, sin = layers.rope_tables(config.rope, dim, positions[None])
            unit = np.maximum(np.asarray(positions)[:, None] * frequencies, 1.0)
            case.close("cos", cos[0] / unit, tensors[f"{name}.cos"] / unit, ANGLE_LIMIT)
            case.close("sin", sin[0] / unit, tensors[f"{name}.sin"] / unit, ANGLE_LIMIT)
            amplitude = config.rope.amplitude
            case.close("attention_factor", amplitude, entry["attention_factor"], 1e-6)
            if entry["qk_head_dim"] > dim:  # Otherwise a drafter's table: its scale has no mscale^2.
                case.close("softmax_scale", config.softmax_scale, entry["softmax_scale"], 1e-6)

        yield name, body


def router_groups(path: Path) -> Cases:
    """The router with expert groups: the same experts, and their weights."""

    def body(case: Case) -> None:
        with reading(path):
            tensors = load_file(path)
        facts = read_facts(path.with_suffix(".json"))
        config = _kimi(
            hidden_size=facts["hidden"],
            n_routed_experts=facts["n_routed_experts"],
            n_group=facts["n_group"],
            topk_group=facts["topk_group"],
            num_experts_per_tok=facts["num_experts_per_tok"],
            routed_scaling_factor=facts["routed_scaling_factor"],
            norm_topk_prob=facts["norm_topk_prob"],
        )
        router = Router(config, layers.Linears(frozenset(), "bfloat16", jnp.dtype(jnp.float32), nnx.Rngs(0)))
        router.weight.set_value(tensors["gate_weight"])
        router.e_score_correction_bias.set_value(tensors["e_score_correction_bias"])
        hidden = tensors["hidden"]
        ids, weights = router(hidden, jnp.ones(len(hidden), bool))
        order = jnp.argsort(ids, axis=-1)
        case.equal("topk_idx", jnp.take_along_axis(ids, order, -1), tensors["topk_idx"])
        case.close(
            "topk_weight", jnp.take_along_axis(weights, order, -1), tensors["topk_weight"], ROUTER_LIMIT
        )

    yield path.stem, body


def tokenizer_toy(folder: Path) -> Cases:
    """Text to token ids, with special tokens recognised and as plain text; a case is a text."""
    tokenizer = load_tokenizer(folder)
    for index, entry in enumerate(read_facts(folder / "cases.json")["cases"]):

        def body(case: Case, entry: dict[str, Any] = entry) -> None:
            if tokenizer is None:
                raise FileNotFoundError(f"{folder} holds no tokenizer")
            case.equal("ids", tokenizer.encode(entry["text"], specials=True), entry["ids"])
            case.equal("ids_ordinary", tokenizer.encode(entry["text"], specials=False), entry["ids_ordinary"])

        yield f"text {index}", body


def _kimi(**changes: Any) -> KimiK2Config:
    """A configuration in which only ``changes`` matter."""
    sizes = dict.fromkeys(SIZES, 1)
    rest = {"model_type": "kimi_k2", "rms_norm_eps": 1e-5, "rope_theta": 1e4}
    config = target_config({**sizes, **rest, **changes})
    assert isinstance(config, KimiK2Config)
    return config


PARTS: dict[str, Callable[[Path], Cases]] = {
    "expert_dequant.safetensors": expert_dequant,
    "rope_tables.safetensors": rope_tables,
    "router_groups.safetensors": router_groups,
    "tokenizer_toy": tokenizer_toy,
}
"""A file or folder of single parts, and its cases."""
