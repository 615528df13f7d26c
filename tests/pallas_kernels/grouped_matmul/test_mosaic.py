"""INT4 tiles, the grouping of tokens and all that is around the Hopper kernel, which itself needs the GPU
(`scripts/bench_kernels.py` checks it there).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.dispatch import traced_kernels
from pallas_kernels.grouped_matmul import api, grouping, mosaic, tiles
from pallas_kernels.grouped_matmul.gather_kernel import ORDERED, gather
from pallas_kernels.grouped_matmul.reference import unpack


def random_weight(experts: int, out: int, inputs: int, seed: int) -> api.Int4:
    random = np.random.default_rng(seed)
    words = random.integers(-(2**31), 2**31, (experts, out, inputs // 8), dtype=np.int32)
    scale = random.uniform(0.01, 0.05, (experts, out, inputs // 32))
    return api.Int4(jnp.asarray(words), jnp.asarray(scale, jnp.bfloat16))


def random_experts(count: int, inner: int, hidden: int) -> api.Experts:
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    return api.Experts(*(random_weight(count, *shape, seed) for seed, shape in enumerate(shapes)))


@pytest.mark.parametrize(("out", "inputs"), [(64, 128), (320, 64), (128, 320)])
def test_a_thread_finds_its_own_weights_in_its_words(out, inputs):
    weight = random_weight(2, out, inputs, seed=0)
    codes = np.asarray(unpack(api.Int4(weight.packed, jnp.ones_like(weight.scale)), "float32")) + 8
    packed = np.asarray(tiles.tiles_of(weight)).view(np.uint32)
    width = packed.shape[-1]
    groups = width // 32
    random = np.random.default_rng(1)
    for _ in range(100):
        expert, strip, step, h, thread, m, i, e = random.integers(
            (2, out // 64, inputs // width, 2, 128, groups, 4, 2)
        )
        w, a, c = thread // 32, thread % 32 // 4, thread % 4
        tile = packed[expert, strip, step].reshape(-1)
        row, column = 64 * strip + 16 * w + a + 8 * h, width * step + 8 * (4 * m + i) + 2 * c + e
        word = tile[(128 * h + thread) * groups + m]
        assert (word >> np.uint32(4 * (i + 4 * e))) & 15 == codes[expert, row, column]
        scales = tile[256 * groups :].view(np.uint16)
        scale = scales[((w * 8 + a) * 2 + h) * groups + m]
        assert scale == np.asarray(weight.scale).view(np.uint16)[expert, row, column // 32]


@pytest.mark.parametrize(("inner", "hidden"), [(64, 128), (192, 320)])
def test_tiles_give_back_what_was_published(inner, hidden):
    experts = random_experts(3, inner, hidden)
    jax.tree.map(np.testing.assert_array_equal, tiles.published(tiles.pack(*experts)), [*map(tuple, experts)])


@pytest.mark.parametrize(("inner", "hidden"), [(32, 128), (96, 128), (64, 96)])
def test_shapes_that_tiles_do_not_divide_are_refused(inner, hidden):
    with pytest.raises(NotImplementedError, match="no multiple of 64"):
        tiles.pack(*random_experts(2, inner, hidden))


gathered = jax.jit(partial(gather, interpret=True), static_argnums=2)
grouped = partial(jax.jit, static_argnames=("experts", "rows"))(grouping.group)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([(9, 3, 7, 8), (20, 2, 3, 16)]), st.integers(0, 999))
def test_every_assignment_has_a_row_of_its_expert(sizes, seed):
    tokens, chosen, experts, rows = sizes
    random = np.random.default_rng(seed)
    ids = np.stack([random.permutation(experts)[:chosen] for _ in range(tokens)]).astype(np.int32)
    ids[random.random(ids.shape) < random.choice([0, 0.2, 1])] = -1
    blocks = jax.tree.map(np.asarray, grouped(ids, experts=experts, rows=rows))
    assert blocks.tokens.shape == (grouping.count(tokens, chosen, experts, rows), rows)
    places = blocks.places[ids >= 0]
    assert len(set(places.tolist())) == len(places) == (blocks.tokens >= 0).sum()
    np.testing.assert_array_equal(blocks.experts[places // rows], ids[ids >= 0])
    np.testing.assert_array_equal(blocks.tokens.reshape(-1)[places], np.nonzero(ids >= 0)[0])
    assert (np.any(blocks.tokens >= 0, axis=1) == (blocks.experts >= 0)).all()


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([(9, 3, 7, 8), (20, 2, 3, 16), (40, 2, 4, 8), (90, 3, 9, 8)]), st.integers(0, 999))
def test_a_block_holds_the_rows_of_its_expert(sizes, seed):
    tokens, chosen, experts, rows = sizes
    random = np.random.default_rng(seed)
    ids = np.stack([random.permutation(experts)[:chosen] for _ in range(tokens)]).astype(np.int32)
    ids[random.random(ids.shape) < random.choice([0, 0.2, 1])] = -1
    x = random.normal(size=(tokens, 24)).astype(np.float32)
    taken, owners, counts, places = map(np.asarray, gathered(x, ids, rows))
    used = places[ids >= 0]
    assert len(set(used.tolist())) == len(used)
    np.testing.assert_array_equal(owners[used // rows], ids[ids >= 0])
    np.testing.assert_array_equal(taken.reshape(-1, 24)[used], x[np.nonzero(ids >= 0)[0]])
    np.testing.assert_array_equal(counts, np.bincount(used // rows, minlength=len(counts)))
    assert (np.diff((counts > 0).astype(int)) <= 0).all() or len(counts) > ORDERED
    filled = {int(expert): -(-int((ids == expert).sum()) // rows) for expert in set(ids[ids >= 0].tolist())}
    begun = owners[counts > 0].tolist()
    assert filled == {expert: begun.count(expert) for expert in begun}


def plain_multiply(x, experts, counts, packed, *, splits=1, strips_each=1, result):
    """What `mosaic_kernel.multiply` computes, block by block; rows that are no tokens become NaN."""
    x = jnp.broadcast_to(x, (len(experts), *x.shape[1:]))
    counts = jnp.full(len(experts), x.shape[1]) if counts is None else counts
    e, strips, steps, lines, width = packed.shape
    parts = lines // tiles.LINES
    assert steps % splits == 0 and strips % strips_each == 0
    apart = packed.reshape(e, strips, steps, parts, tiles.LINES, width)
    weights = [unpack(tiles.unpack(apart[:, :, :, part]), "bfloat16") for part in range(parts)]
    weights = jnp.stack(weights).astype(jnp.float32).reshape(parts, e, -1, splits, steps // splits * width)
    rows = x.astype(jnp.float32).reshape(*x.shape[:2], splits, -1)
    sums = jnp.einsum("pbosk,brsk->psbro", weights[:, experts], rows)
    is_token = (jnp.arange(x.shape[1]) < counts[:, None]) & (experts >= 0)[:, None]
    sums = jnp.where(is_token[..., None], sums, jnp.nan)
    if result == "sums":
        return sums
    assert splits == 1
    if result == "activated":
        sums, parts = (jax.nn.silu(sums[0]) * sums[1])[None], 1
    whole = sums[:, 0].reshape(parts, len(x), x.shape[1], strips, tiles.ROWS)
    return whole.transpose(1, 2, 3, 0, 4).reshape(len(x), x.shape[1], -1).astype(jnp.bfloat16)


@pytest.mark.parametrize(
    ("tokens", "experts", "inner", "hidden"),
    [(1, 6, 64, 896), (1, 6, 256, 320), (9, 6, 128, 320), (9, 20, 192, 320), (70, 6, 64, 128)],
)
def test_blocks_of_tiles_equal_the_reference(tokens, experts, inner, hidden):
    chosen = 3
    random = np.random.default_rng(5)
    x = jnp.asarray(random.normal(size=(tokens, hidden)), jnp.bfloat16)
    ids = np.stack([random.permutation(experts)[:chosen] for _ in range(tokens)]).astype(np.int32)
    ids[tokens // 2 :, 0] = -1
    shares = jnp.asarray(random.uniform(0.1, 1.0, ids.shape), jnp.float32)
    packed = tiles.pack(*random_experts(experts, inner, hidden))
    blocked = partial(
        mosaic.blocked, multiply=plain_multiply, sizes=mosaic.Sizes(64, 4, 7, 14, 8), interpret=True
    )
    found = jax.jit(blocked)(x, jnp.asarray(ids), shares, packed)
    exact = jax.jit(partial(api.expert_mlp, rounding="bfloat16", implementation="xla"))
    wanted = exact(x.astype(jnp.float32), ids, shares, packed)
    found, wanted = (np.asarray(array, np.float64) for array in (found, wanted))
    assert np.linalg.norm(found - wanted) < 6e-3 * np.linalg.norm(wanted)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("tokens", "inner", "hidden"), [(1, 256, 896), (17, 256, 320), (200, 64, 128)])
def test_on_hopper_it_is_taken_and_lowers(tokens, inner, hidden, hopper):
    packed = tiles.pack(*random_experts(4, inner, hidden))
    x, shares = jnp.ones((tokens, hidden), jnp.bfloat16), jnp.ones((tokens, 2))
    ids = jnp.broadcast_to(jnp.arange(2, dtype=jnp.int32), (tokens, 2))
    with hopper, traced_kernels() as ran:
        program = jax.jit(partial(api.expert_mlp, rounding="bfloat16")).trace(x, ids, shares, packed)
        lowered = program.lower(lowering_platforms=("cuda",))
    assert ran == {"grouped_matmul": "mosaic_gpu"}
    assert lowered.as_text().count("stablehlo.custom_call @mosaic_gpu") == 2


def test_the_kernel_is_not_taken_off_hopper():
    packed = tiles.pack(*random_experts(2, 64, 128))
    x, ids, shares = jnp.ones((2, 128), jnp.bfloat16), jnp.zeros((2, 1), jnp.int32), jnp.ones((2, 1))
    with pytest.raises(NotImplementedError, match="a kernel for Hopper GPUs"):
        api.expert_mlp(x, ids, shares, packed, rounding="bfloat16", implementation="mosaic_gpu")
