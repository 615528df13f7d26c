"""The training forward against itself: packed, alone, one token at a time."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree.config import target_config
from scripts.pair import target
from scripts.pair.sizes import SIZES, target_json
from scripts.pair.target import FLOAT32, head_logits, init_target, new_cache, rounded

SIZE = SIZES["toy"]
CONFIG = target_config(target_json(SIZE))
forward = jax.jit(partial(target.forward, CONFIG, cudnn=False))
step = jax.jit(partial(target.step, CONFIG))
next_logits = jax.jit(partial(target.next_logits, CONFIG, cudnn=False))


@pytest.fixture(scope="module")
def params() -> dict[str, jax.Array]:
    """Random parameters whose every part matters: nothing is zero."""
    params = init_target(CONFIG, seed=0)
    rng = np.random.default_rng(1)
    return {
        name: value + 0.1 * rng.standard_normal(value.shape, np.float32) for name, value in params.items()
    }


@pytest.fixture(scope="module")
def row() -> tuple[jax.Array, jax.Array]:
    """One packed row: documents of 5 and 7 tokens, then padding."""
    tokens = jax.random.randint(jax.random.key(2), (1, 14), 0, 300)
    return tokens, jnp.array([[*range(5), *range(7), 0, 0]], jnp.int32)


def test_documents_of_a_packed_row_do_not_see_each_other(params, row):
    tokens, positions = row
    packed = forward(params, tokens, positions)
    alone = forward(params, tokens[:, 5:12], positions[:, 5:12])
    np.testing.assert_allclose(packed.hidden[:, 5:12], alone.hidden, atol=1e-5)


def test_token_by_token_equals_all_at_once(params, row):
    tokens, positions = row[0][:, 5:12], row[1][:, 5:12]
    cache = new_cache(CONFIG, 1, 10, jnp.float32)
    whole = head_logits(params, forward(params, tokens, positions).hidden)
    for i in range(7):
        logits, cache = step(params, cache, tokens[:, i], jnp.int32(i))
        np.testing.assert_allclose(logits, whole[:, i], atol=1e-4)


def test_loss_counts_next_tokens_of_the_same_document(params, row):
    following, counts, loads = next_logits(params, *row)
    losses = target.cross_entropy(following, row[0][:, 1:])
    np.testing.assert_array_equal(counts[0], [1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0])
    logits = head_logits(params, forward(params, *row).hidden)
    expected = -jax.nn.log_softmax(logits[0, 2])[row[0][0, 3]]
    np.testing.assert_allclose(losses[0, 2], expected, rtol=1e-5)
    assert loads.shape == (CONFIG.num_layers - 1, CONFIG.num_experts)
    np.testing.assert_array_equal(jnp.sum(loads, axis=1), 14 * CONFIG.experts_per_token)


def test_only_the_router_stays_float32(params):
    wide = {name for name, value in rounded(params, jnp.bfloat16).items() if value.dtype == jnp.float32}
    assert wide == {name for name in params if name.endswith(FLOAT32)}
