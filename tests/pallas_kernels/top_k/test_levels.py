"""Top-k by chunks is `jax.lax.top_k`, ties and non-finite values included."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.top_k.api import top_k
from pallas_kernels.top_k.levels import by_chunks

WIDTH, K = 300, 5


@partial(jax.jit, static_argnames="sizes")
def both(x, sizes):
    return by_chunks(x, K, sizes), jax.lax.top_k(x, K)


@given(
    seed=st.integers(0, 1000),
    levels=st.sampled_from([(), (7,), (32, 8), (32, 16, 2), (100,)]),
    distinct=st.sampled_from([1, 3, 40, 100_000]),
    lost=st.sampled_from([None, -np.inf, np.inf, np.nan]),
)
def test_equals_a_full_sort(seed: int, levels: tuple[int, ...], distinct: int, lost: float | None) -> None:
    random = np.random.default_rng(seed)
    x = random.integers(0, distinct, (2, 3, WIDTH)).astype(np.float32) / 7
    if lost is not None:
        x[random.random(x.shape) < 0.98 * (lost == -np.inf) + 0.02] = lost
    (values, ids), (right_values, right_ids) = both(x, levels)
    np.testing.assert_array_equal(values, right_values)
    np.testing.assert_array_equal(ids, right_ids)


def test_a_chunk_that_is_mostly_padding_gives_no_index_past_the_end() -> None:
    x = jnp.full((1, WIDTH), -jnp.inf)
    _, ids = by_chunks(x, K, (32, 8))
    np.testing.assert_array_equal(ids, [[0, 1, 2, 3, 4]])


def test_off_a_gpu_the_compilers_own_is_taken_and_naming_the_other_is_refused() -> None:
    x = jnp.arange(40_000.0)[None]
    np.testing.assert_array_equal(top_k(x, 2)[1], [[39_999, 39_998]])
    with pytest.raises(NotImplementedError, match="measured on GPUs alone"):
        top_k(x, 2, implementation="levels")
