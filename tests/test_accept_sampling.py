"""What sampled rows choose at a slot: the target's own law under both rules, whatever the tree offers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree import sampling
from jddtree.accept import RULES, choose, follow
from jddtree.sampling import GREEDY, GREEDY_BELOW, Mode, Sample, stack
from jddtree.tree import Tree, ancestor_bits, root

DRAWS, VOCAB, DEPTH = 20_000, 6, 2
MODE = Mode(sampled=True, cuts=True)
# Root, its children 4, 1 and 3, and a child of the first; then two unused slots, which hold token 0.
PARENTS, TOKENS, DEPTHS = (-1, 0, 0, 1, 0, -1, -1), (5, 4, 1, 2, 3, 0, 0), (0, 1, 1, 2, 1, 0, 0)
PROBABILITIES = np.array(
    [
        [0.30, 0.25, 0.05, 0.0, 0.22, 0.18],
        [0.05, 0.15, 0.45, 0.1, 0.05, 0.20],
        *[[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]] * 5,
    ]
)
# The chi-square quantile at 1 - 1e-4 for 4 and for 5 degrees of freedom.
LIMITS = {4: 23.51, 5: 25.74}

jitted_choose = jax.jit(choose, static_argnames=("depth", "mode", "rule"))


def tree(rows: int) -> Tree:
    columns = [jnp.tile(jnp.array(column, jnp.int32), (rows, 1)) for column in (TOKENS, PARENTS, DEPTHS)]
    return Tree(*columns, jnp.full((rows,), 4, jnp.int32), ancestor_bits(columns[1], 2))


def logits(rows: int) -> jax.Array:
    values = np.log(np.maximum(PROBABILITIES, 1e-30)).astype(np.float32)
    return jnp.tile(jnp.asarray(values), (rows, 1, 1))


def arrays(policies: list) -> sampling.Sampling:
    return jax.tree.map(jnp.asarray, stack(policies, VOCAB))


def picked(rule: str, policies: list, function=jitted_choose) -> np.ndarray:
    """Tokens [B, N] that rows of these policies choose."""
    rows = len(policies)
    state, lengths = arrays(policies), jnp.full((rows,), 9, jnp.int32)
    values, shape = logits(rows), tree(rows)
    return np.asarray(function(values, shape, lengths, state, depth=DEPTH, mode=MODE, rule=rule)[0])


def statistic(tokens: np.ndarray, law: np.ndarray) -> tuple[float, int]:
    """Chi-square and degrees of freedom against a law; tokens of probability 0 may not occur."""
    counts, expected = np.bincount(tokens, minlength=VOCAB), law * len(tokens)
    assert not counts[law == 0].any()
    possible = law > 0
    return float(np.sum((counts - expected)[possible] ** 2 / expected[possible])), int(possible.sum()) - 1


@pytest.mark.parametrize("rule", RULES)
def test_every_slot_has_the_targets_law(rule):
    tokens = picked(rule, [Sample(seed=seed) for seed in range(DRAWS)])
    for slot in range(len(PARENTS)):
        found, degrees = statistic(tokens[:, slot], PROBABILITIES[slot])
        assert found < LIMITS[degrees], slot
    # Slots at different depths are different tokens of the text: their draws are independent.
    after = tokens[tokens[:, 0] == 4, 1]
    found, degrees = statistic(after, PROBABILITIES[1])
    assert found < LIMITS[degrees]


def test_a_coin_goes_to_the_interval_that_it_falls_into(monkeypatch):
    coins = jnp.array([1e-9, 0.2199, 0.2201, 0.4699, 0.4701, 1.0], jnp.float32)
    # Without noise the rest is the likeliest token that is no child.
    monkeypatch.setattr(sampling, "noise", lambda state, at, size: jnp.zeros((*at.shape, size), jnp.float32))
    monkeypatch.setattr(sampling, "coins", lambda state, at: jnp.tile(coins[:, None], (1, at.shape[1])))
    assert picked("target-only", [Sample()] * 6, choose)[:, 0].tolist() == [4, 4, 1, 1, 0, 0]


def test_children_that_hold_all_the_mass_are_chosen_whatever_the_coin(monkeypatch):
    monkeypatch.setattr(sampling, "coins", lambda state, at: jnp.ones(at.shape, jnp.float32))
    values = jnp.log(jnp.array([0.0, 0.1, 0.0, 0.2, 0.7, 0.0], jnp.float32))
    values = jnp.tile(values, (6, len(PARENTS), 1))
    state, lengths = arrays([Sample(seed=seed) for seed in range(6)]), jnp.full((6,), 9, jnp.int32)
    tokens, margins = choose(values, tree(6), lengths, state, depth=DEPTH, mode=MODE, rule="target-only")
    assert set(tokens[:, 0].tolist()) <= {1, 3, 4} and not jnp.isnan(margins).any()


@pytest.mark.parametrize("rule", RULES)
def test_low_temperatures_and_single_tokens_are_greedy(rule):
    greedy = PROBABILITIES.argmax(axis=1)
    rows = [
        GREEDY,
        Sample(1e-6),
        Sample(GREEDY_BELOW),
        Sample(top_k=1),
        Sample(min_p=1.0),
        Sample(top_p=1e-6),
    ]
    assert (picked(rule, rows) == greedy).all()


@pytest.mark.parametrize("rule", RULES)
def test_a_row_does_not_see_its_neighbours(rule):
    policies = [Sample(temperature, top_k, seed=4) for temperature in (0.6, 1.5) for top_k in (None, 2, 5)]
    policies[3] = GREEDY
    rolled = picked(rule, policies[2:] + policies[:2])
    assert picked(rule, policies).tolist() == np.roll(rolled, 2, axis=0).tolist()


def test_under_follow_tokens_do_not_depend_on_the_tree():
    """A slot's token comes from its logits, the seed and its position: plain decoding's, node for node."""
    policy, spots = Sample(seed=11), (0, 1, 3)
    state = arrays([policy])
    inside = picked("follow", [policy])[0]
    for slot in spots:
        anchor, length = jnp.array([TOKENS[slot]], jnp.int32), jnp.array([9 + DEPTHS[slot]], jnp.int32)
        plain, _ = jitted_choose(
            logits(1)[:, slot : slot + 1], root(anchor), length, state, depth=0, mode=MODE, rule="follow"
        )
        assert int(plain[0, 0]) == inside[slot]


def test_the_walk_takes_children_that_coins_chose(monkeypatch):
    monkeypatch.setattr(sampling, "coins", lambda state, at: jnp.full(at.shape, 0.1, jnp.float32))
    shape = tree(1)
    tokens = jnp.asarray(picked("target-only", [Sample()], choose))
    path = follow(shape, tokens, DEPTH)
    assert path.slots.tolist() == [[0, 1, 3]] and path.tokens[0, :2].tolist() == [4, 2]
