"""The plain-JAX routed experts over every named case, against a loop over tokens in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.grouped_matmul.api import Experts, Int4, expert_mlp
from pallas_kernels.grouped_matmul.cases import CASES
from pallas_kernels.grouped_matmul.reference import unpack
from tests.oracles.routed_experts import routing, weights


def by_hand(weight: Int4 | jax.Array, rounding: str) -> np.ndarray:
    """Every expert's numbers, float64, one element at a time from the layout's definition."""
    if not isinstance(weight, Int4):
        return np.asarray(weight, np.float64)
    packed, scale = np.asarray(weight.packed).view(np.uint32), np.asarray(weight.scale, np.float64)
    nibbles = np.stack([(packed >> (4 * place)) & 15 for place in range(8)], axis=-1)
    q = nibbles.reshape(*packed.shape[:-1], -1).astype(np.float64) - 8
    exact = q * np.repeat(scale, 32, axis=-1)
    return exact if rounding == "float32" else np.asarray(jnp.asarray(exact, jnp.bfloat16), np.float64)


@pytest.mark.parametrize("rounding", ["bfloat16", "float32"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_a_loop_over_tokens_and_experts(case, rounding):
    random = np.random.default_rng(3)
    x = jnp.asarray(random.normal(size=(case.tokens, case.hidden)), case.dtype)
    ids = routing(case, random)
    shares = random.uniform(0.1, 1.0, ids.shape).astype(np.float32)
    gate = weights(case, case.inner, case.hidden, random)
    up = weights(case, case.inner, case.hidden, random)
    down = weights(case, case.hidden, case.inner, random)
    result = partial(jax.jit, static_argnames=("rounding", "implementation"))(expert_mlp)(
        x, ids, shares, Experts(gate, up, down), rounding=rounding, implementation="xla"
    )
    assert result.dtype == x.dtype
    wanted = np.zeros((case.tokens, case.hidden))
    dense = [by_hand(weight, rounding) for weight in (gate, up, down)]
    for token, vector in enumerate(np.asarray(x, np.float64)):
        for expert, share in zip(ids[token], shares[token], strict=True):
            if expert >= 0:
                opened = dense[0][expert] @ vector
                inner = opened / (1 + np.exp(-opened)) * (dense[1][expert] @ vector)
                wanted[token] += share * (dense[2][expert] @ inner)
    assert np.abs(wanted).max() > 0.05
    limit = 3e-2 * np.abs(wanted).max() if case.dtype == "bfloat16" else 2e-5
    np.testing.assert_allclose(np.asarray(result, np.float64), wanted, rtol=0, atol=limit)


def test_an_unknown_rounding_is_refused():
    weight = Int4(jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 1), jnp.bfloat16))
    with pytest.raises(ValueError, match="rounding must be 'bfloat16' or 'float32', not 'int8'"):
        unpack(weight, "int8")
