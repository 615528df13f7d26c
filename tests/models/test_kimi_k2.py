"""What the golden outputs leave open: layer kinds, taps, and invalid slots in a whole pass."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree.models import causal
from jddtree.models.layers import MLP
from jddtree.models.moe import MoE
from pallas_kernels.tree_attention.api import causal_mask
from tests import tiny


@jax.jit
def passes(model, ids, valid):
    """A pass with taps (1, 0), and the logits."""
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape)
    cache = model.new_cache(len(ids), 4, jnp.dtype(jnp.float32))
    zero = jnp.zeros(len(ids), jnp.int32)
    passed = model(ids, positions, valid, causal_mask(ids.shape[1]), cache, zero, (1, 0))
    return passed, model.logits(passed.hidden)


@pytest.mark.parametrize("rows", [1, 2])
def test_slots_that_go_along_change_nothing(rows, monkeypatch):
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 50, (rows, 5), np.int32))
    given = ids, jnp.arange(5) < jnp.array([[4], [5]])[:rows]
    model = tiny.target(tiny.KIMI)
    wanted = passes(model, *given)
    monkeypatch.setattr(causal, "whole_slots", lambda rows, slots, dtype: slots + 3)
    passed, logits = jax.jit(lambda *given: passes.__wrapped__(*given))(model, *given)
    assert [leaf.shape for leaf in passed.fresh] == [(rows, 8, 1, 40)] * 2
    passed = replace(passed, fresh=jax.tree.map(lambda leaf: leaf[:, :5], passed.fresh))
    for found, right in zip(*map(jax.tree.leaves, ((passed, logits), wanted)), strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5)


def test_layers_are_dense_then_routed_by_frequency():
    raw = tiny.KIMI | {"num_hidden_layers": 4, "first_k_dense_replace": 1, "moe_layer_freq": 2}
    model = tiny.target(raw)
    assert [type(layer.mlp) for layer in model.layers] == [MLP, MLP, MoE, MLP]


@pytest.mark.parametrize("tied", [False, True])
def test_one_pass(tied):
    model = tiny.target(tiny.KIMI | {"tie_word_embeddings": tied})
    ids = jnp.array([[4, 0, 49, 7, 0, 0]], jnp.int32)
    valid = jnp.arange(6)[None] < 4
    passed, logits = passes(model, ids, valid)
    head = model.embed_tokens.weight[...] if tied else model.lm_head.weight[...]
    assert hasattr(model, "lm_head") != tied and logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, np.asarray(passed.hidden) @ np.asarray(head).T, atol=1e-3)
    # Taps in the order asked for; the last layer's feature is taken before the final norm.
    last, first = np.split(np.asarray(passed.features), 2, axis=-1)
    np.testing.assert_allclose(passed.hidden, model.norm(jnp.asarray(last)), atol=1e-5)
    assert np.abs(first - last).max() > 0.1
    # One routed layer; invalid slots reach no expert and leave the valid ones alone.
    (experts,) = passed.experts
    assert (experts[0, 4:] == -1).all() and (experts[0, :4] >= 0).all()
    other, other_logits = passes(model, ids.at[0, 4:].set(33), valid)
    np.testing.assert_allclose(other_logits[0, :4], logits[0, :4], atol=1e-5)
    np.testing.assert_array_equal(other.experts[0][0, :4], experts[0, :4])
    # One latent head a token, as the cache wants it.
    assert [leaf.shape for leaf in passed.fresh] == [(1, 6, 1, 40)] * 2
