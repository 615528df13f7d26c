"""Commits against a loop. The golden compactions run through `jddtree.compare.goldens`, tested beside it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jddtree.cache import append, commit

ROWS, SPACE, SLOTS, KEPT = 3, 7, 6, 4

jitted_commit, jitted_append = jax.jit(commit), jax.jit(append)


def leaves(seed: int, width: int) -> dict[str, np.ndarray]:
    """Two leaves of different rank and dtype, as a model's cache may have them."""
    random = np.random.default_rng(seed)
    return {
        "keys": random.normal(size=(ROWS, width, 2, 3)).astype(np.float32),
        "tokens": random.integers(0, 100, (ROWS, width)).astype(np.int32),
    }


def by_hand(cache, fresh, slots, count, lengths):
    result = {name: leaf.copy() for name, leaf in cache.items()}
    for name, leaf in result.items():
        for row in range(ROWS):
            for index in range(count[row]):
                if lengths[row] + index < SPACE:
                    leaf[row, lengths[row] + index] = fresh[name][row, slots[row, index]]
    return result


@given(
    slots=hnp.arrays(np.int32, (ROWS, KEPT), elements=st.integers(0, SLOTS - 1)),
    count=hnp.arrays(np.int32, ROWS, elements=st.integers(0, KEPT)),
    lengths=hnp.arrays(np.int32, ROWS, elements=st.integers(0, SPACE)),
)
def test_each_row_gets_its_chosen_slots_and_what_does_not_fit_is_dropped(slots, count, lengths):
    cache, fresh = leaves(1, SPACE), leaves(2, SLOTS)
    result = jitted_commit(cache, fresh, slots, count, lengths)
    jax.tree.map(np.testing.assert_array_equal, result, by_hand(cache, fresh, slots, count, lengths))


def test_append_keeps_the_first_slots_as_they_stand():
    cache, fresh = leaves(1, SPACE), leaves(2, SLOTS)
    count, lengths = np.array([0, 2, 6], np.int32), np.array([3, 0, 1], np.int32)
    result = jitted_append(cache, fresh, count, lengths)
    order = np.tile(np.arange(SLOTS, dtype=np.int32), (ROWS, 1))
    jax.tree.map(np.testing.assert_array_equal, result, by_hand(cache, fresh, order, count, lengths))


@pytest.mark.parametrize(("count", "length", "written"), [(1, 2, 2), (0, 2, None), (1, 3, 3), (1, 4, None)])
def test_a_single_slot_of_a_single_row_is_written_once_or_not_at_all(count, length, written):
    cache = np.arange(4.0, dtype=np.float32)[None]
    fresh, slots = np.array([[7, 8, 9]], np.float32), np.array([[1]], np.int32)
    result = jitted_commit(cache, fresh, slots, np.array([count], np.int32), np.array([length], np.int32))
    expected = [8 if place == written else place for place in range(4)]
    assert result[0].tolist() == expected


def test_what_is_written_takes_the_caches_dtype():
    cache = jnp.zeros((1, 4, 2), jnp.bfloat16)
    result = append(cache, jnp.ones((1, 2, 2)), jnp.array([2], jnp.int32), jnp.array([1], jnp.int32))
    assert result.dtype == jnp.bfloat16
    assert result[0, :, 0].tolist() == [0, 1, 1, 0]
