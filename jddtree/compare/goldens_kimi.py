"""Reference data for a whole Kimi K2 model, stage by stage: prefill, pieces, trees, long positions."""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from jddtree.cache import append
from jddtree.compare.checks import Case, Cases, reading
from jddtree.compare.padding import padded, widen, widen_mask
from jddtree.compare.weights import FLOAT32, reference_kimi
from jddtree.models.kimi_k2 import KimiK2
from jddtree.models.layers import rope_tables
from jddtree.models.moe import MoE
from jddtree.models.target import Cache, Pass
from pallas_kernels.tree_attention.api import causal_mask

Golden = Mapping[str, np.ndarray]

LIMIT = 2e-4
"""Absolute, float32: hidden states, caches, expert weights and logits."""


def model_outputs(folder: Path) -> Cases:
    """A case is a file of ``<folder>_outputs``; weights come from ``folder``."""
    load = cache(partial(reference_kimi, folder))
    for path in sorted(folder.with_name(f"{folder.name}_outputs").glob("*.safetensors")):

        def body(case: Case, path: Path = path) -> None:
            with reading(path):
                golden = load_file(path)
            if "chunk_sizes" in golden:
                _pieces(case, load(), golden)
                return
            _one_pass(case, load(), golden)
            # The same weights in other modes of the public code.
            if "logits_exact_dequant" in golden:
                model = load(rounding="float32")
                case.close(
                    "logits_exact_dequant",
                    _causal_logits(model, golden),
                    golden["logits_exact_dequant"],
                    LIMIT,
                )
            if "logits_lora_eps_cfg" in golden:
                model = load(lora_norm_eps=load().config.rms_norm_eps)
                case.close(
                    "logits_lora_eps_cfg", _causal_logits(model, golden), golden["logits_lora_eps_cfg"], LIMIT
                )

        yield path.stem, body


@jax.jit
def _run(
    model: KimiK2, ids, positions, valid, mask, cache: Cache, lengths
) -> tuple[Pass, jax.Array, jax.Array, Cache]:
    """One pass that taps every layer, with the embeddings, the logits, and the cache with all valid slots."""
    passed = model(ids, positions, valid, mask, cache, lengths, tuple(range(model.config.num_layers)))
    full = append(cache, passed.fresh, jnp.sum(valid, axis=1, dtype=jnp.int32), lengths)
    return passed, model.embed(ids), model.logits(passed.hidden), full


@jax.jit
def _stages(model: KimiK2, inputs, positions, valid, mask, cache: Cache, lengths):
    """Attention, feed-forward and routing of every layer in ``inputs``, from the reference's own inputs."""
    rope = rope_tables(model.config.rope, model.config.rope_head_dim, positions)
    outputs: dict[int, tuple[jax.Array, jax.Array, jax.Array | None]] = {}
    for index, (x, attended) in inputs.items():
        layer = model.layers[index]
        heads, _ = layer.self_attn(layer.input_layernorm(x), rope, mask, cache[index], lengths)
        attn_out = layer.self_attn.o_proj.joined(heads)
        normed = layer.post_attention_layernorm(x + attended)
        if isinstance(layer.mlp, MoE):
            ids, weights = layer.mlp.gate(normed.reshape(-1, normed.shape[-1]), valid.reshape(-1))
            order = jnp.argsort(ids, axis=-1)
            weights = jnp.take_along_axis(weights, order, axis=-1).reshape(*valid.shape, -1)
            outputs[index] = attn_out, layer.mlp(normed, valid)[0], weights
        else:
            outputs[index] = attn_out, layer.mlp(normed), None
    return outputs


def _one_pass(case: Case, model: KimiK2, golden: Golden) -> None:
    """All new slots in one pass: causal, or a tree after a causal prefix."""
    ids = golden["tree_ids" if "tree_ids" in golden else "input_ids"]
    rows, slots = ids.shape
    prefix = golden["prefix_ids"].shape[1] if "prefix_ids" in golden else 0
    committed = model.new_cache(rows, padded(prefix + slots), FLOAT32)
    lengths = np.zeros((rows,), np.int32)
    if prefix:
        positions = np.broadcast_to(np.arange(prefix, dtype=np.int32), (rows, prefix))
        _, _, logits, committed = _run(
            model, *_inputs(golden["prefix_ids"], positions), _causal(prefix), committed, lengths
        )
        case.close("prefix_logits", np.asarray(logits)[:, :prefix], golden["prefix_logits"], LIMIT)
        lengths = lengths + np.int32(prefix)
    mask = widen_mask(golden["ancestor_mask"].astype(bool)) if "ancestor_mask" in golden else _causal(slots)
    inputs = _inputs(ids, golden["position_ids"])
    passed, embedded, logits, full = jax.device_get(_run(model, *inputs, mask, committed, lengths))
    if "embed" in golden:
        case.close("embed", embedded[:, :slots], golden["embed"], LIMIT)
    _stage_checks(case, model, golden, *inputs[1:], mask, committed, lengths)
    _layer_checks(case, model, golden, passed)
    _cache_checks(case, model, golden, full, prefix + slots)
    if "final_norm" in golden:
        case.close("final_norm", passed.hidden[:, :slots], golden["final_norm"], LIMIT)
    case.close("logits", logits[:, :slots], golden["logits"], LIMIT)


def _inputs(ids: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, positions and which slots are valid, padded."""
    return widen(ids), widen(positions), widen(np.ones(ids.shape, bool))


def _causal(slots: int) -> jax.Array:
    return causal_mask(padded(slots))


def _stage_checks(
    case: Case, model: KimiK2, golden: Golden, positions, valid, mask, committed, lengths
) -> None:
    inputs = {}
    for index in range(model.config.num_layers):
        before = "embed" if index == 0 else f"layer{index - 1}.out"
        if before in golden and f"layer{index}.attn_out" in golden:
            inputs[index] = widen(golden[before]), widen(golden[f"layer{index}.attn_out"])
    stages = jax.device_get(_stages(model, inputs, positions, valid, mask, committed, lengths))
    slots = golden["logits"].shape[1]
    for index, outputs in stages.items():
        attn_out, mlp_out, weights = (output if output is None else output[:, :slots] for output in outputs)
        case.close(f"layer {index} attn_out", attn_out, golden[f"layer{index}.attn_out"], LIMIT)
        case.close(f"layer {index} mlp_out", mlp_out, golden[f"layer{index}.mlp_out"], LIMIT)
        if weights is not None:
            case.close(f"layer {index} topk_weight", weights, golden[f"layer{index}.topk_weight"], LIMIT)


def _layer_checks(case: Case, model: KimiK2, golden: Golden, passed: Pass) -> None:
    slots = golden["logits"].shape[1]
    outputs = np.split(passed.features[:, :slots], model.config.num_layers, axis=-1)
    experts = iter(passed.experts)
    for index, output in enumerate(outputs):
        if f"layer{index}.out" in golden:
            case.close(f"layer {index} out", output, golden[f"layer{index}.out"], LIMIT)
        if model.config.is_moe(index):
            chosen = np.sort(next(experts)[:, :slots], axis=-1)
            if f"layer{index}.topk_idx" in golden:
                case.equal(f"layer {index} experts", chosen, golden[f"layer{index}.topk_idx"])


def _cache_checks(case: Case, model: KimiK2, golden: Golden, full: Any, used: int) -> None:
    rank = model.config.kv_lora_rank
    for index, whole in enumerate(full):
        if f"layer{index}.cache_ckv" in golden:
            latent = np.asarray(whole)[:, :used]
            case.close(f"layer {index} ckv", latent[:, :, 0, :rank], golden[f"layer{index}.cache_ckv"], LIMIT)
            case.close(
                f"layer {index} krope", latent[:, :, 0, rank:], golden[f"layer{index}.cache_krope"], LIMIT
            )


def _pieces(case: Case, model: KimiK2, golden: Golden) -> None:
    """The same tokens in pieces over a growing cache. Pieces are padded, as the prefill does."""
    ids, positions = golden["input_ids"], golden["position_ids"]
    rows, total = ids.shape
    committed = model.new_cache(rows, padded(total), FLOAT32)
    logits, begin = [], 0
    for size in golden["chunk_sizes"].tolist():
        piece = slice(begin, begin + size)
        lengths = np.full((rows,), begin, np.int32)
        _, _, computed, committed = _run(
            model, *_inputs(ids[:, piece], positions[:, piece]), _causal(size), committed, lengths
        )
        logits.append(np.asarray(computed)[:, :size])
        begin += size
    case.equal("tokens fed", begin, total)
    case.close("logits", np.concatenate(logits, axis=1), golden["logits"], LIMIT)
    _cache_checks(case, model, golden, committed, total)


def _causal_logits(model: KimiK2, golden: Golden) -> np.ndarray:
    rows, slots = golden["input_ids"].shape
    inputs = _inputs(golden["input_ids"], golden["position_ids"])
    empty, nothing = model.new_cache(rows, padded(slots), FLOAT32), np.zeros((rows,), np.int32)
    return np.asarray(_run(model, *inputs, _causal(slots), empty, nothing)[2])[:, :slots]
