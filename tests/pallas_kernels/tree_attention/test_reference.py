"""The plain-JAX attention over every named case, against one big mask in float64."""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.tree_attention.api import causal_mask, pack_mask, tree_attention
from pallas_kernels.tree_attention.cases import CASES
from pallas_kernels.tree_attention.reference import unpack_mask
from tests.oracles.heap_tree import ancestors
from tests.oracles.masked_attention import check

jitted_attention = partial(jax.jit, static_argnames=("scale", "value_width", "implementation"))(
    tree_attention
)
jitted_pack, jitted_unpack = jax.jit(pack_mask), jax.jit(unpack_mask, static_argnums=1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_one_softmax_under_one_mask(case):
    width = case.value_width if case.latent else None
    check(case, partial(jitted_attention, value_width=width, implementation="xla"))


@pytest.mark.parametrize("latent", [False, True])
def test_a_slot_that_is_not_a_number_reaches_those_alone_that_see_it(latent):
    random = np.random.default_rng(3)
    q, prefix, block = (random.normal(size=(1, n, 2, 4)).astype(np.float32) for n in (5, 6, 5))
    visible = ancestors(np.array([-1, 0, 0, 1, 2]))[None]

    def attend(keys: np.ndarray) -> np.ndarray:
        values = (None, None) if latent else (prefix[..., :3], keys[..., :3])
        lengths, width = np.array([6], np.int32), 3 if latent else None
        parts = (q, prefix, values[0], keys, values[1], lengths, jitted_pack(visible))
        return np.asarray(jitted_attention(*parts, scale=1.0, value_width=width, implementation="xla"))[0]

    whole, bad = attend(block), block.copy()
    bad[0, 1] = np.nan
    found = attend(bad)
    assert np.isnan(found[[1, 3]]).all()
    np.testing.assert_array_equal(found[[0, 2, 4]], whole[[0, 2, 4]])


@given(
    size=st.sampled_from((1, 31, 32, 33, 70)), seed=st.integers(0, 99), density=st.sampled_from((0, 0.5, 1))
)
def test_packing_a_mask_keeps_every_bit(size, seed, density):
    visible = np.random.default_rng(seed).random((2, size, size)) < density
    packed = jitted_pack(visible)
    assert packed.shape == (2, size, -(-size // 32))
    np.testing.assert_array_equal(jitted_unpack(packed, size), visible)


def test_bit_k_of_a_row_is_column_k():
    visible = np.zeros((1, 40, 40), bool)
    visible[0, 3, [0, 31, 33]] = True
    assert pack_mask(visible)[0, 3].tolist() == [1 + 2**31, 2]
    np.testing.assert_array_equal(unpack_mask(causal_mask(40), 40)[0], np.tri(40, dtype=bool))
