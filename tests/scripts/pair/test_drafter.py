"""The drafter's training form against the decoding model, and what a block may see."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree.config import drafter_config
from jddtree.models.target import Target
from pallas_kernels.tree_attention.api import causal_mask
from scripts.pair.drafter import (
    as_model,
    block_hidden,
    choose_anchors,
    init_drafter,
    labels,
    target_pass,
    told,
)
from tests import tiny

CONFIG = drafter_config(tiny.DFLASH | {"layer_types": ["full_attention"] * 2})
DEPTH = CONFIG.block_size - 1
compute = jax.jit(partial(block_hidden, CONFIG, cudnn=False))
# Documents of 9 and 11 tokens, then padding.
POSITIONS = jnp.array([[*range(9), *range(11), 0, 0]], jnp.int32)
TOKENS = jax.random.randint(jax.random.key(3), POSITIONS.shape, 0, 40)
ANCHORS = jnp.array([[13, 3, 18]], jnp.int32)


@pytest.fixture(scope="module")
def weights() -> tuple[dict[str, jax.Array], Target, jax.Array]:
    """Drafter, target, features; nothing is zero."""
    drafter = init_drafter(CONFIG, seed=0)
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    drafter = {name: value + 0.1 * normal(*value.shape) for name, value in drafter.items()}
    return drafter, tiny.target(tiny.QWEN3), normal(1, TOKENS.shape[1], 2 * CONFIG.hidden_size)


def hidden(weights, features=None, tokens=TOKENS) -> jax.Array:
    drafter, target, given = weights
    features = given if features is None else features
    return compute(drafter, target, features, tokens, POSITIONS, ANCHORS)


def test_equals_the_decoding_model(weights):
    drafter, target, features = weights
    model = as_model(CONFIG, drafter)
    ours = target.logits(hidden(weights)[0])
    context = jax.jit(lambda features, positions: model.context(features, positions))
    draft = jax.jit(lambda anchor, length, cache: model.draft(target, anchor, length, cache))
    for number, (anchor, start) in enumerate(((13, 9), (3, 0), (18, 9))):
        length = anchor - start
        # 16 slots, so that one program does for all; those after the length are not seen.
        slots = np.minimum(np.arange(start, start + 16), TOKENS.shape[1] - 1)
        cache = context(features[:, slots], POSITIONS[:, slots])
        theirs = draft(TOKENS[:, anchor], jnp.array([length], jnp.int32), cache)
        np.testing.assert_allclose(ours[number], theirs[0], atol=2e-3)


def test_blocks_that_attend_apart_give_the_same(weights, monkeypatch):
    monkeypatch.setattr("scripts.pair.drafter.TOGETHER", CONFIG.block_size)
    apart = jax.jit(partial(block_hidden, CONFIG, cudnn=False))(*weights, TOKENS, POSITIONS, ANCHORS)
    np.testing.assert_allclose(apart, hidden(weights), atol=1e-5)


@pytest.mark.parametrize("raw", [tiny.QWEN3, tiny.KIMI], ids=["qwen3", "kimi"])
def test_features_of_a_packed_document_are_those_of_it_alone(raw):
    target = tiny.target(raw)
    packed = jax.jit(target_pass, static_argnums=3)(target, TOKENS, POSITIONS, (0, 1)).features
    empty, nothing = target.new_cache(1, 1, jnp.dtype(jnp.float32)), jnp.zeros(1, jnp.int32)
    valid = jnp.ones((1, 11), bool)
    run = jax.jit(lambda target, *inputs: target(*inputs, (0, 1)))
    alone = run(target, TOKENS[:, 9:20], POSITIONS[:, 9:20], valid, causal_mask(11), empty, nothing)
    np.testing.assert_allclose(packed[:, 9:20], alone.features, atol=1e-4)


def test_a_block_sees_its_document_strictly_before_its_anchor(weights):
    features = weights[2]
    base = hidden(weights)
    seen = {13: range(9, 13), 3: range(3), 18: range(9, 18)}
    for at in range(TOKENS.shape[1]):
        changed = hidden(weights, features.at[:, at].add(1.0))
        for number, anchor in enumerate(ANCHORS[0]):
            assert bool(jnp.any(changed[:, number] != base[:, number])) == (at in seen[int(anchor)])


def test_of_the_tokens_a_block_sees_the_anchor_alone(weights):
    base = hidden(weights)
    for at in range(TOKENS.shape[1]):
        changed = hidden(weights, tokens=TOKENS.at[0, at].add(1))
        for number, anchor in enumerate(ANCHORS[0]):
            assert bool(jnp.any(changed[:, number] != base[:, number])) == (at == anchor)


def test_labels_are_the_tokens_at_the_blocks_own_positions():
    right, exists = labels(TOKENS, POSITIONS, ANCHORS, DEPTH)
    np.testing.assert_array_equal(right[0, 0], TOKENS[0, 14 : 14 + DEPTH])
    np.testing.assert_array_equal(right[0, 1], TOKENS[0, 4 : 4 + DEPTH])
    np.testing.assert_array_equal(exists[0], [[True] * DEPTH, [True] * DEPTH, [True] + [False] * (DEPTH - 1)])


def test_labels_are_told_by_the_token_before_each():
    hidden = jnp.arange(POSITIONS.shape[1], dtype=jnp.float32)[None, :, None]
    found = told(hidden, ANCHORS, DEPTH)[0, :, :, 0]
    np.testing.assert_array_equal(found[0], 13 + np.arange(DEPTH))
    np.testing.assert_array_equal(found[1], 3 + np.arange(DEPTH))


def test_anchors_are_answer_tokens_that_something_follows():
    at = jnp.arange(POSITIONS.shape[1])[None]
    answer = ((at >= 5) & (at < 9)) | ((at >= 15) & (at < 20))
    for seed in range(5):
        anchors, real = choose_anchors(answer, POSITIONS, 12, jax.random.key(seed))
        assert sorted(anchors[real].tolist()) == [5, 6, 7, 15, 16, 17, 18]
