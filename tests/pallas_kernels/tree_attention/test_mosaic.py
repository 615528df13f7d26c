"""All that is around the Hopper kernel for wide latents, which itself needs the GPU
(`scripts/bench_kernels.py` checks it there).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import traced_kernels
from pallas_kernels.tree_attention import mosaic
from pallas_kernels.tree_attention.api import pack_mask, tree_attention
from pallas_kernels.tree_attention.reference import partial_attention
from tests.oracles.heap_tree import ancestors

WIDTH = mosaic.VALUES + mosaic.REST


def plain_split(q, prefix, block, bias, lengths, *, scale, splits):
    """What `mosaic_kernel.attend_split` computes, split by split."""
    tiles = -(-lengths // mosaic.KEYS)
    each = -(-tiles // splits) * mosaic.KEYS
    slots = jnp.arange(prefix.shape[1])
    found = []
    for split in range(splits):
        seen = (slots >= split * each[:, None]) & (slots < (split + 1) * each[:, None])
        seen &= slots < lengths[:, None]
        found.append((prefix, seen[:, None]))
    found.append((block, bias == 0))
    parts, lse = zip(
        *(
            partial_attention(
                q[:, :, None, None], keys[:, :, None], keys[:, :, None, : mosaic.VALUES], seen, scale
            )
            for keys, seen in found
        ),
        strict=True,
    )
    whole = jnp.stack(parts, axis=1)[:, :, :, 0, 0].astype(jnp.bfloat16)
    return whole, jnp.stack(lse, axis=1)[..., 0, 0] / np.log(2)


around = jax.jit(partial(mosaic.merged, interpret=True), static_argnums=(5, 6, 7))
plain = jax.jit(
    partial(tree_attention, value_width=mosaic.VALUES, scale=0.04, implementation="xla"),
)


def drawn(rows: int, slots: int, heads: int) -> tuple[jax.Array, ...]:
    """Queries, a cache of 192 slots, and the block's keys."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (rows, slots, heads, WIDTH), (rows, 192, 1, WIDTH), (rows, slots, 1, WIDTH)
    return tuple(jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True))


@pytest.mark.parametrize(("slots", "heads", "lengths"), [(1, 8, [191]), (5, 3, [0, 65]), (67, 2, [64])])
def test_parts_are_merged_to_the_whole(slots, heads, lengths):
    q, prefix, block = drawn(len(lengths), slots, heads)
    random = np.random.default_rng(1)
    parents = np.array([-1] + [random.integers(0, slot) for slot in range(1, slots)])
    mask, lengths = pack_mask(ancestors(parents)[None]), jnp.asarray(lengths, jnp.int32)
    found = around(q, prefix, block, lengths, mask, 0.04, 2, plain_split).astype(jnp.float32)
    wide = [array.astype(jnp.float32) for array in (q, prefix, block)]
    wanted = plain(wide[0], wide[1], None, wide[2], None, lengths, mask)
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) < 5e-3 * np.linalg.norm(wanted)


def test_a_slot_that_is_not_a_number_reaches_those_alone_that_see_it():
    q, prefix, block = drawn(1, 5, 2)
    mask, lengths = pack_mask(ancestors(np.array([-1, 0, 0, 1, 2]))[None]), jnp.array([70], jnp.int32)
    whole, bad = (
        np.asarray(around(q, prefix, keys, lengths, mask, 0.04, 2, plain_split)[0].astype(jnp.float32))
        for keys in (block, block.at[0, 1, 0, 5].set(jnp.nan))
    )
    assert np.isnan(bad[[1, 3]]).all()
    np.testing.assert_array_equal(bad[[0, 2, 4]], whole[[0, 2, 4]])


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("slots", "heads", "rows", "taken"),
    [(1, 16, 2, "triton"), (1, 17, 2, "mosaic_gpu"), (17, 64, 2, "mosaic_gpu")],
)
def test_on_hopper_it_is_taken_unless_rows_are_few_and_lowers(slots, heads, rows, taken, hopper):
    q, prefix, block = drawn(rows, slots, heads)
    mask, lengths = pack_mask(np.tri(slots, dtype=bool)[None]), jnp.full((rows,), 100, jnp.int32)
    attend = jax.jit(partial(tree_attention, scale=0.04, value_width=mosaic.VALUES))
    arrays = q, prefix, None, block, None, lengths, mask
    with hopper, traced_kernels() as ran:
        lowered = attend.trace(*arrays).lower(lowering_platforms=("cuda",))
    assert ran == {"tree_attention": taken}
    assert lowered.as_text().count("stablehlo.custom_call @mosaic_gpu") == (taken == "mosaic_gpu")


def test_the_kernel_is_not_taken_for_other_arrays_or_off_hopper():
    q, prefix, block = drawn(1, 2, 2)
    rest = None, block, None, jnp.array([3], jnp.int32), pack_mask(np.tri(2, dtype=bool)[None])
    attend = partial(tree_attention, scale=1.0, implementation="mosaic_gpu")
    for message, arrays, options in (
        ("latents of 512", (q, prefix, *rest), {"value_width": 256}),
        ("without windows", (q, prefix, *rest), {"value_width": 512, "lower": jnp.zeros((1, 2), jnp.int32)}),
        ("takes bfloat16", (q.astype(jnp.float32), prefix, *rest), {"value_width": 512}),
        ("no multiple of 64", (q, prefix[:, :100], *rest), {"value_width": 512}),
        ("a kernel for Hopper GPUs", (q, prefix, *rest), {"value_width": 512}),
    ):
        with pytest.raises(NotImplementedError, match=message):
            attend(*arrays, **options)
