"""The drafter's loss against slow versions of the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts.pair import loss
from scripts.pair.loss import LOSSES, block_loss, expected_length_weights, exponential_weights
from tests import tiny

EXISTS = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], bool)


def test_expected_length_weights_are_the_sums_of_products():
    right = np.random.default_rng(0).random((3, 4))
    found = expected_length_weights(jnp.asarray(right), jnp.asarray(EXISTS))
    for row in range(3):
        for j in range(4):
            total = 0.0
            for k in range(j, 4):
                product = 1.0
                for i in range(k + 1):
                    product *= 0.5 * right[row, i] + 0.5
                total += product * EXISTS[row, k]
            assert found[row, j] == pytest.approx(total * EXISTS[row, j], rel=1e-5)


def test_without_smoothing_they_are_the_expected_lengths_gradient(monkeypatch):
    monkeypatch.setattr(loss, "SMOOTHING", 0.0)
    logs = jnp.log(jnp.array([0.9, 0.5, 0.2, 0.7]))
    slope = jax.grad(lambda logs: jnp.sum(jnp.cumprod(jnp.exp(logs))))(logs)
    np.testing.assert_allclose(expected_length_weights(jnp.exp(logs), jnp.ones(4, bool)), slope, rtol=1e-5)


@pytest.mark.parametrize("kind", LOSSES)
def test_in_parts_and_whole_give_the_weighted_mean(kind, monkeypatch):
    target = tiny.target(tiny.QWEN3)
    hidden, told = jax.random.normal(jax.random.key(0), (2, 3, 4, 32))
    right = jax.random.randint(jax.random.key(1), (3, 4), 0, 50)

    def of(hidden) -> jax.Array:
        return block_loss(target, hidden, told, right, jnp.asarray(EXISTS), kind)

    whole, slope = jax.value_and_grad(of)(hidden)
    monkeypatch.setattr(loss, "LOGIT_BYTES", 4 * 50 * 4)  # one block
    parts, again = jax.value_and_grad(of)(hidden)
    every = np.asarray(jax.nn.log_softmax(target.logits(hidden)))
    logs = np.take_along_axis(every, np.asarray(right)[..., None], axis=-1)[..., 0]
    soft = np.sum(np.asarray(jax.nn.softmax(target.logits(told))) * every, axis=-1)
    weights = exponential_weights(jnp.asarray(EXISTS))
    if kind == "expected-length":
        weights = expected_length_weights(jnp.exp(logs), jnp.asarray(EXISTS))
    assert float(whole) == pytest.approx(
        float(np.sum(-(logs + soft) / 2 * weights) / np.sum(weights)), rel=1e-5
    )
    assert float(parts) == pytest.approx(float(whole), rel=1e-5)
    np.testing.assert_allclose(again, slope, atol=1e-6)
    assert not np.any(slope[2])
    assert np.all(np.any(slope[0], axis=-1))
