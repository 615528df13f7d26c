"""Policies: what they cut, against a slow oracle; what randomness depends on; which values are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jddtree import sampling
from jddtree.errors import InputError
from jddtree.sampling import GREEDY, Mode, Sample, stack
from tests.oracles.cuts import kept_tokens

VOCAB = 7
CUTS = Mode(sampled=True, cuts=True)
jitted_scores = jax.jit(sampling.scores, static_argnames="mode")


def arrays(policies: list, vocab_size: int = VOCAB) -> sampling.Sampling:
    return jax.tree.map(jnp.asarray, stack(policies, vocab_size))


def scores(logits: np.ndarray, policies: list, mode: Mode = CUTS) -> np.ndarray:
    """Scores [B, V] of one slot a row."""
    values = jitted_scores(
        jnp.asarray(logits, jnp.float32)[:, None], stack(policies, logits.shape[1]), mode=mode
    )
    return np.asarray(values[:, 0])


policies = st.builds(
    Sample,
    temperature=st.sampled_from((0.3, 1.0, 2.5)),
    top_k=st.sampled_from((None, 1, 2, 5, 100)),
    top_p=st.sampled_from((1.0, 0.9, 0.45, 0.1, 1e-6)),
    min_p=st.sampled_from((0.0, 0.04, 0.3, 1.0)),
)
# Multiples of a quarter: ties are frequent, and sums of weights keep clear of the values above.
logits = st.lists(st.integers(-12, 12).map(lambda quarter: quarter / 4), min_size=VOCAB, max_size=VOCAB)


@given(rows=st.lists(st.tuples(logits, policies), min_size=2, max_size=2))
def test_cuts_are_the_oracles(rows):
    values = np.array([row for row, _ in rows])
    found = scores(values, [policy for _, policy in rows])
    for row, (own, policy) in enumerate(rows):
        kept = kept_tokens(own, policy)
        assert np.flatnonzero(found[row] > -np.inf).tolist() == kept
        np.testing.assert_allclose(found[row, kept], values[row, kept] / policy.temperature, rtol=1e-6)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (Sample(top_k=2), [1, 2]),
        (Sample(top_p=0.75), [0, 1, 2]),
        (Sample(top_p=0.55), [1, 2]),
        # Top-p goes by what top-k left: 0.4 of 0.7 is more than 0.55.
        (Sample(top_k=2, top_p=0.55), [1]),
        (Sample(min_p=0.3), [0, 1, 2]),
        (Sample(min_p=0.6), [1, 2]),
        # Cuts go by probabilities after temperature: (0.3 / 0.4) ** 2 is under 0.6.
        (Sample(temperature=0.5, min_p=0.6), [1]),
    ],
)
def test_cuts_by_hand(policy, kept):
    found = scores(np.log([[0.2, 0.4, 0.3, 0.1]]), [policy])
    assert np.flatnonzero(found[0] > -np.inf).tolist() == kept


def test_a_row_without_cuts_keeps_every_token_among_rows_with_cuts():
    # In float32 the first weight alone sums to 1.
    values = np.array([[0.0, -30.0, -40.0, -50.0]] * 2)
    found = scores(values, [Sample(), Sample(top_k=1)])
    assert found[0].tolist() == scores(values, [Sample()] * 2, Mode(sampled=True))[0].tolist()
    assert np.isneginf(found[1]).tolist() == [False, True, True, True]


@pytest.mark.parametrize("temperature", [1e-5, 1e-3])
def test_low_temperatures_give_finite_scores_and_the_greedy_token(temperature):
    values = np.array([[1000.0, -1000.0, 999.0, 0.0]])
    found = scores(values, [Sample(temperature=temperature)])
    assert np.isfinite(found).all()
    state = arrays([Sample(temperature=temperature)], 4)
    noise = sampling.noise(state, jnp.zeros((1, 1), jnp.int32), 4)[:, 0]
    assert np.argmax(found + noise) == 0


def test_under_the_threshold_rows_are_greedy():
    state = arrays([GREEDY, Sample(temperature=0.0), Sample(temperature=1e-6), Sample(temperature=1e-4)], 4)
    assert sampling.is_greedy(state).tolist() == [True, True, True, False]


def test_randomness_depends_on_seed_and_position_alone():
    seeds = (7, 2**32 - 1, 0, 7)
    rows = arrays([Sample(1.0 + row, top_k=row + 1, seed=seed) for row, seed in enumerate(seeds)])
    positions = jnp.array([[3, 4], [3, 4], [3, 4], [4, 900]], jnp.int32)
    noise, coins = sampling.noise(rows, positions, VOCAB), sampling.coins(rows, positions)
    alone = arrays([Sample(seed=7)])
    for drawn, one in (
        (noise, sampling.noise(alone, positions[:1, 1:], VOCAB)),
        (coins, sampling.coins(alone, positions[:1, 1:])),
    ):
        drawn, one = np.asarray(drawn), np.asarray(one)
        assert (drawn[0, 1] == one[0, 0]).all() and (drawn[3, 0] == one[0, 0]).all()
        places = drawn[[0, 0, 1, 1, 2, 2, 3], [0, 1, 0, 1, 0, 1, 1]]
        assert len(np.unique(places)) == places.size


def test_coins_are_uniform_and_never_0():
    positions = jnp.arange(20_000, dtype=jnp.int32)[None]
    coins = np.sort(np.asarray(sampling.coins(arrays([Sample(seed=3)]), positions))[0])
    assert coins[0] > 0 and coins[-1] <= 1
    # Kolmogorov's distance passes 2.23 / sqrt(n) once in 10,000 times.
    assert np.max(np.abs(coins - np.arange(1, 20_001) / 20_000)) < 2.23 / np.sqrt(20_000)


def test_a_coin_of_the_generators_0_is_1(monkeypatch):
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape, dtype: jnp.zeros(shape, dtype))
    assert sampling.coins(arrays([Sample()]), jnp.zeros((1, 1), jnp.int32)).tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": 0}, "top-k"),
        ({"top_p": 0.0}, "top-p"),
        ({"top_p": 1.01}, "top-p"),
        ({"top_p": float("nan")}, "top-p"),
        ({"min_p": -0.01}, "min-p"),
        ({"min_p": 1.01}, "min-p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
    ],
)
def test_values_out_of_range_are_named(values, named):
    with pytest.raises(InputError, match=named):
        Sample(**values)


def test_a_mode_is_the_least_that_serves_all():
    assert Mode.of([GREEDY]) == Mode()
    assert Mode.of([GREEDY, Sample()]) == Mode(sampled=True)
    for cut in ({"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}):
        assert Mode.of([Sample(**cut), GREEDY]) == CUTS
