"""Tree attention as one softmax under one big mask, in float64, and the arrays of a named case."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.tree_attention.api import pack_mask
from pallas_kernels.tree_attention.cases import Case
from tests.oracles.heap_tree import ancestors

packed = jax.jit(pack_mask)


@dataclass
class Drawn:
    """Arrays of one case as `tree_attention` takes them, but for ``visible`` [B, N, N] bool for the mask."""

    q: np.ndarray
    prefix_k: np.ndarray
    prefix_v: np.ndarray
    block_k: np.ndarray
    block_v: np.ndarray
    lengths: np.ndarray
    lower: np.ndarray | None
    visible: np.ndarray


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


def draw(case: Case) -> Drawn:
    """Seeded arrays of a case; latent values are a copy of the keys' first channels."""
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
    lower = None
    if case.window is not None:
        lower = (lengths[:, None] + np.arange(case.slots) - case.window + 1).astype(np.int32)
    visible = visibility(case, random)
    return Drawn(q, prefix_k, prefix_v, block_k, block_v, lengths, lower, visible)


def masked_attention(case: Case, drawn: Drawn) -> np.ndarray:
    """[B, N, H, Vw] float64: softmax over the concatenated keys under one mask [B, N, S + N]."""
    keys, values = (
        np.concatenate(pair, axis=1).astype(np.float64)
        for pair in ((drawn.prefix_k, drawn.block_k), (drawn.prefix_v, drawn.block_v))
    )
    slot = np.arange(case.cache)
    committed = np.broadcast_to(slot < drawn.lengths[:, None, None], (case.rows, case.slots, case.cache))
    if drawn.lower is not None:
        committed = committed & (slot >= drawn.lower[:, :, None])
    mask = np.concatenate([committed, drawn.visible], axis=-1)
    share = case.heads // case.key_heads
    keys, values = (np.repeat(array, share, axis=2) for array in (keys, values))
    scores = np.einsum("bnhk,bshk->bhns", drawn.q.astype(np.float64), keys) * case.key_width**-0.5
    scores = np.where(mask[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhns,bshv->bnhv", weights, values)


def check(case: Case, attend: Callable[..., jax.Array]) -> None:
    """``attend``, called as `tree_attention` with the case's arrays and scale, equals `masked_attention`."""
    drawn = draw(case)
    prefix_v, block_v = (None, None) if case.latent else (drawn.prefix_v, drawn.block_v)
    arrays = drawn.q, drawn.prefix_k, prefix_v, drawn.block_k, block_v, drawn.lengths
    result = attend(*arrays, packed(drawn.visible), scale=case.key_width**-0.5, lower=drawn.lower)
    assert result.dtype == case.dtype
    limit = 2e-2 if case.dtype == "bfloat16" else 5e-6
    wanted = masked_attention(case, drawn)
    np.testing.assert_allclose(np.asarray(result, np.float64), wanted, rtol=0, atol=limit)
