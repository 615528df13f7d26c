"""The plain-JAX attention over every named case, against one big mask in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.tree_attention.api import causal_mask, pack_mask, tree_attention
from pallas_kernels.tree_attention.cases import CASES, Case
from pallas_kernels.tree_attention.reference import unpack_mask
from tests.oracles.heap_tree import ancestors

jitted_attention = partial(jax.jit, static_argnames=("scale", "value_width", "implementation"))(
    tree_attention
)
jitted_pack, jitted_unpack = jax.jit(pack_mask), jax.jit(unpack_mask, static_argnums=1)


def visibility(case: Case, random: np.random.Generator) -> np.ndarray:
    """[B, N, N] bool: which slots of the block each slot sees."""
    if case.tree == "all":
        return np.ones((case.rows, case.slots, case.slots), bool)
    parents_of = {
        "chain": lambda slot: slot - 1,
        "star": lambda slot: 0,
        "random": lambda slot: int(random.integers(0, slot)),
    }[case.tree]
    parents = [[-1, *(parents_of(slot) for slot in range(1, case.slots))] for _ in range(case.rows)]
    return np.stack([ancestors(np.array(row)) for row in parents])


def oracle(q, prefix_k, prefix_v, block_k, block_v, lengths, visible, lower, scale):
    """Softmax over the concatenated keys under one mask [B, N, S + N], float64."""
    keys, values = (
        np.concatenate(pair, axis=1).astype(np.float64) for pair in ((prefix_k, block_k), (prefix_v, block_v))
    )
    slot = np.arange(prefix_k.shape[1])
    committed = (slot < lengths[:, None, None]) & (slot >= lower[:, :, None])
    mask = np.concatenate([committed, visible], axis=-1)
    share = q.shape[2] // keys.shape[2]
    keys, values = (np.repeat(array, share, axis=2) for array in (keys, values))
    scores = np.einsum("bnhk,bshk->bhns", q.astype(np.float64), keys) * scale
    scores = np.where(mask[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhns,bshv->bnhv", weights, values)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_one_softmax_under_one_mask(case):
    random = np.random.default_rng(7)

    def drawn(*shape: int) -> np.ndarray:
        return np.asarray(jnp.asarray(random.normal(size=shape), case.dtype))

    q = drawn(case.rows, case.slots, case.heads, case.key_width)
    prefix_k = drawn(case.rows, case.cache, case.key_heads, case.key_width)
    block_k = drawn(case.rows, case.slots, case.key_heads, case.key_width)
    if case.latent:
        prefix_v, block_v = (keys[..., : case.value_width] for keys in (prefix_k, block_k))
    else:
        prefix_v = drawn(case.rows, case.cache, case.key_heads, case.value_width)
        block_v = drawn(case.rows, case.slots, case.key_heads, case.value_width)
    lengths = np.array(case.lengths, np.int32)
    # Whatever lies past a row's length must not count: rejected slots leave garbage there.
    past = np.arange(case.cache) >= lengths[:, None]
    prefix_k, prefix_v = (np.where(past[..., None, None], 1e4, array) for array in (prefix_k, prefix_v))
    prefix_k, prefix_v = (np.asarray(jnp.asarray(array, case.dtype)) for array in (prefix_k, prefix_v))
    visible = visibility(case, random)
    lower = None
    if case.window is not None:
        lower = (lengths[:, None] + np.arange(case.slots) - case.window + 1).astype(np.int32)
    result = jitted_attention(
        q,
        prefix_k,
        None if case.latent else prefix_v,
        block_k,
        None if case.latent else block_v,
        lengths,
        jitted_pack(visible),
        scale=case.key_width**-0.5,
        lower=lower,
        value_width=case.value_width if case.latent else None,
        implementation="xla",
    )
    assert result.dtype == case.dtype
    unbounded = np.zeros((case.rows, case.slots), np.int32)
    wanted = oracle(
        *(q, prefix_k, prefix_v, block_k, block_v, lengths, visible),
        unbounded if lower is None else lower,
        case.key_width**-0.5,
    )
    limit = 2e-2 if case.dtype == "bfloat16" else 5e-6
    np.testing.assert_allclose(np.asarray(result, np.float64), wanted, rtol=0, atol=limit)


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
