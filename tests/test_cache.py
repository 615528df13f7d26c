"""Commits of both kinds against a loop. Golden compactions: `jddtree.compare.goldens`, tested beside it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jddtree.cache import append, commit
from pallas_kernels.commit import triton

SPACE, SLOTS, KEPT = 7, 6, 4

jitted_append = jax.jit(append)
COMMITS = {"xla": jax.jit(commit), "triton": jax.jit(partial(triton.commit, interpret=True))}
both = pytest.mark.parametrize("jitted_commit", COMMITS.values(), ids=COMMITS)


def leaves(seed: int, rows: int, width: int) -> dict[str, np.ndarray]:
    """Leaves of different ranks, sizes and dtypes, as a model's cache may have them."""
    random = np.random.default_rng(seed)
    return {
        "keys": random.normal(size=(rows, width, 2, 3)).astype(np.float32),
        "latents": random.normal(size=(rows, width, 1, 5)).astype(jnp.bfloat16),
        "tokens": random.integers(0, 100, (rows, width)).astype(np.int32),
    }


def by_hand(cache, fresh, slots, count, lengths):
    result = {name: leaf.copy() for name, leaf in cache.items()}
    for name, leaf in result.items():
        for row in range(len(leaf)):
            for index in range(count[row]):
                if lengths[row] + index < SPACE:
                    leaf[row, lengths[row] + index] = fresh[name][row, slots[row, index]]
    return result


@both
@pytest.mark.parametrize("rows", [1, 3])
@given(data=st.data())
def test_each_row_gets_its_chosen_slots_and_what_does_not_fit_is_dropped(jitted_commit, rows, data):
    slots, count, lengths = (
        data.draw(hnp.arrays(np.int32, shape, elements=st.integers(0, most)))
        for shape, most in [((rows, KEPT), SLOTS - 1), (rows, KEPT), (rows, SPACE)]
    )
    cache, fresh = leaves(1, rows, SPACE), leaves(2, rows, SLOTS)
    result = jitted_commit(cache, fresh, slots, count, lengths)
    jax.tree.map(np.testing.assert_array_equal, result, by_hand(cache, fresh, slots, count, lengths))


def test_append_keeps_the_first_slots_as_they_stand():
    cache, fresh = leaves(1, 3, SPACE), leaves(2, 3, SLOTS)
    count, lengths = np.array([0, 2, 6], np.int32), np.array([3, 0, 1], np.int32)
    result = jitted_append(cache, fresh, count, lengths)
    order = np.tile(np.arange(SLOTS, dtype=np.int32), (3, 1))
    jax.tree.map(np.testing.assert_array_equal, result, by_hand(cache, fresh, order, count, lengths))


@both
@pytest.mark.parametrize(("count", "length", "written"), [(1, 2, 2), (0, 2, None), (1, 3, 3), (1, 4, None)])
def test_a_single_slot_of_a_single_row_is_written_once_or_not_at_all(jitted_commit, count, length, written):
    cache = np.arange(4.0, dtype=np.float32)[None]
    fresh, slots = np.array([[7, 8, 9]], np.float32), np.array([[1]], np.int32)
    result = jitted_commit(cache, fresh, slots, np.array([count], np.int32), np.array([length], np.int32))
    expected = [8 if place == written else place for place in range(4)]
    assert result[0].tolist() == expected


@both
def test_what_is_written_takes_the_caches_dtype(jitted_commit):
    cache = jnp.zeros((1, 4, 2), jnp.bfloat16)
    slots, count, length = (jnp.array(each, jnp.int32) for each in ([[0, 1]], [2], [1]))
    result = jitted_commit(cache, jnp.ones((1, 2, 2)), slots, count, length)
    assert result.dtype == jnp.bfloat16
    assert result[0, :, 0].tolist() == [0, 1, 1, 0]
