"""Dense targets against a plain NumPy model in float64 that knows no cache, no tree and no mask words."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jddtree.cache import append
from jddtree.checkpoint import open_checkpoint
from jddtree.config import target_config
from jddtree.load import load_target
from jddtree.models import causal
from jddtree.models.dense import Dense
from pallas_kernels.dense import api as dense
from pallas_kernels.dense import mosaic
from pallas_kernels.dense.unnormed import Unnormed
from pallas_kernels.tree_attention.api import causal_mask, pack_mask
from tests import tiny
from tests.oracles.heap_tree import ancestors

LLAMAS = Path(__file__).parents[1] / "data" / "llama"


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def naive(model: Dense, ids: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits [T, V] and every layer's output [T, M] of a causal pass over ids [T]."""
    config = model.config
    wide = partial(jax.tree.map, lambda leaf: np.asarray(leaf, np.float64))
    places, half = np.arange(len(ids)), config.head_dim // 2
    angles = places[:, None] * config.rope.theta ** (-np.arange(half) / half)
    turn = np.exp(1j * angles)[:, None]

    def rotate(x: np.ndarray) -> np.ndarray:
        turned = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)

    embedding = wide(model.embed_tokens.weight[...])
    x, outputs = embedding[ids], []
    for layer, window in zip(model.layers, config.windows, strict=True):
        attention, mlp, eps = layer.self_attn, layer.mlp, config.rms_norm_eps

        def through(linear, x):
            bias = 0 if linear.bias is None else wide(linear.bias[...])
            return x @ wide(linear.weight[...]).T + bias

        def normed(part, x):
            return x if part is None else norm(x, wide(part.weight[...]), config.rms_norm_eps)

        h = norm(x, wide(layer.input_layernorm.weight[...]), eps)
        q, k, v = (
            through(linear, h).reshape(len(ids), heads, config.head_dim)
            for linear, heads in (
                (attention.q_proj, config.num_heads),
                (attention.k_proj, config.num_kv_heads),
                (attention.v_proj, config.num_kv_heads),
            )
        )
        q, k = rotate(normed(attention.q_norm, q)), rotate(normed(attention.k_norm, k))
        k, v = (np.repeat(array, config.num_heads // config.num_kv_heads, axis=1) for array in (k, v))
        back = places[:, None] - places
        seen = (back >= 0) & (back < (window or len(ids)))
        scores = np.where(seen, np.einsum("qhd,khd->hqk", q, k) * config.head_dim**-0.5, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + through(attention.o_proj, np.einsum("hqk,khd->qhd", weights, v).reshape(len(ids), -1))
        h = norm(x, wide(layer.post_attention_layernorm.weight[...]), eps)
        opened = through(mlp.gate_proj, h)
        x = x + through(mlp.down_proj, opened / (1 + np.exp(-opened)) * through(mlp.up_proj, h))
        outputs.append(x)
    head = embedding if config.tied else wide(model.lm_head.weight[...])
    return norm(x, wide(model.norm.weight[...]), config.rms_norm_eps) @ head.T, outputs


@jax.jit
def on_prefix(model: Dense, prefix: jax.Array, ids: jax.Array, positions: jax.Array, mask: jax.Array):
    """Logits, and features tapped after layers 1 and 0, of slots over a committed prefix."""
    size = prefix.shape[1]
    empty = model.new_cache(1, size + 2, jnp.dtype(jnp.float32))
    zero, whole = jnp.zeros((1,), jnp.int32), jnp.full((1,), size, jnp.int32)
    places = jnp.arange(size, dtype=jnp.int32)[None]
    first = model(prefix, places, places >= 0, causal_mask(size), empty, zero, ())
    cache = append(empty, first.fresh, whole, zero)
    passed = model(ids, positions, ids >= 0, mask, cache, whole, (1, 0))
    return model.logits(passed.hidden), passed.features


def biases(model: Dense) -> list[nnx.Param]:
    return [
        linear.bias
        for layer in model.layers
        for attention, mlp in [(layer.self_attn, layer.mlp)]
        for linear in (
            *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
            *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
        )
        if linear.bias is not None
    ]


VARIANTS = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "windowed": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3},
    "llama": {"model_type": "llama"},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_node_of_a_tree_is_what_its_own_path_gives(variant):
    model = tiny.target(tiny.QWEN3 | VARIANTS[variant])
    assert hasattr(model, "lm_head") == (variant != "tied")
    random = np.random.default_rng(0)
    llama = variant.startswith("llama")
    assert [leaf.size for leaf in biases(model)] == (
        [32, 16, 16, 32, 32, 32, 32] * 2 if "biases" in variant else []
    )
    for bias in biases(model):
        bias.set_value(jnp.asarray(random.normal(size=bias.size), jnp.float32))
    for attention in (layer.self_attn for layer in model.layers):
        assert (attention.q_norm is None, attention.k_norm is None) == (llama, llama)
        if not llama:
            attention.q_norm.weight.set_value(jnp.asarray(random.uniform(0.5, 2, 8), jnp.float32))
    prefix = random.integers(0, 50, 6).astype(np.int32)
    parents = np.array([-1, 0, 0, 1, 3, 4, 2])
    ids = random.integers(0, 50, len(parents)).astype(np.int32)
    visible = ancestors(parents)
    positions = (len(prefix) + visible.sum(-1) - 1).astype(np.int32)
    logits, features = on_prefix(model, prefix[None], ids[None], positions[None], pack_mask(visible[None]))
    for slot in range(len(parents)):
        path = np.concatenate([prefix, ids[visible[slot]]])
        wanted, outputs = naive(model, path)
        np.testing.assert_allclose(logits[0, slot], wanted[-1], atol=5e-4)
        # Features stand side by side in the order of the taps, after the layers they name.
        np.testing.assert_allclose(features[0, slot], np.append(outputs[1][-1], outputs[0][-1]), atol=5e-4)


def test_slots_that_go_along_change_nothing(monkeypatch):
    model = tiny.target(tiny.QWEN3 | VARIANTS["windowed"])
    random = np.random.default_rng(0)
    prefix, ids = (random.integers(0, 50, (1, count)).astype(np.int32) for count in (6, 5))
    visible = ancestors(np.array([-1, 0, 0, 1, 3]))
    given = prefix, ids, (6 + visible.sum(-1)[None] - 1).astype(np.int32), pack_mask(visible[None])
    wanted = on_prefix(model, *given)
    monkeypatch.setattr(causal, "whole_slots", lambda rows, slots, dtype: slots + 3)
    found = jax.jit(lambda *given: on_prefix.__wrapped__(*given))(model, *given)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("joined", [True, False], ids=["gate and up joined", "apart"])
def test_a_norm_left_to_the_products_behind_it_changes_nothing(joined, monkeypatch):
    wide = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 64}
    raw = tiny.QWEN3 | wide | {"intermediate_size": 512}
    model = Dense(target_config(raw), dtype=jnp.dtype(jnp.bfloat16), rngs=nnx.Rngs(0))
    for layer in model.layers if joined else ():
        layer.mlp.join(None)

    def token(model):
        cache = jax.tree.map(jnp.ones_like, model.new_cache(1, 8, jnp.dtype(jnp.bfloat16)))
        place = jnp.full((1, 1), 5, jnp.int32)
        passed = model(place, place, place > 0, causal_mask(1), cache, place[0], (0, 1))
        return passed.hidden, passed.features, passed.fresh

    wanted, left = jax.jit(token)(model), []
    for name in ("products", "swiglu", "added"):
        kernel = partial(getattr(mosaic, name), interpret=True, sizes=mosaic.Sizes(64, 2, 4))

        def spied(x, *rest, kernel=kernel, **options):
            left.append(isinstance(x, Unnormed))
            return kernel(x, *rest, **options)

        monkeypatch.setattr(dense, name.upper(), (("mosaic_gpu", spied),))
    found = jax.jit(lambda model: token(model))(model)
    # Of two layers all norms but the first and the last.
    assert sum(left) == (3 if joined else 1)
    for one, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        gap = jnp.linalg.norm((one - other).astype(jnp.float32)) / jnp.linalg.norm(other.astype(jnp.float32))
        assert gap < 0.02


@pytest.mark.parametrize("name", ["biases", "llama3", "yarn"])
def test_a_llama_is_what_transformers_makes_of_it(name, tmp_path):
    """Greedy texts after prompts of 3, 40 and 150 tokens; positions are stretched from 32."""
    folder = LLAMAS / name
    checkpoint = open_checkpoint(folder, tmp_path, lambda line: None)
    model = load_target(checkpoint, jnp.dtype(jnp.float32))
    for run in json.loads((folder / "runs.json").read_text()):
        ids = np.array(run["prompt"] + run["output"][:-1], np.int32)
        logits = tiny.forward(model, ids)[len(run["prompt"]) - 1 :]
        assert logits.argmax(-1).tolist() == run["output"]
        np.testing.assert_allclose(logits[-1], run["last_logits"], atol=2e-5)
