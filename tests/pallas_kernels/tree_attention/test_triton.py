"""The fused GPU kernel: over the named cases in interpret mode, and its lowering for CUDA without a GPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from pallas_kernels.dispatch import traced_kernels
from pallas_kernels.parts import Part, parts_of
from pallas_kernels.tree_attention.api import WIDE, causal_mask, pack_mask, tree_attention
from pallas_kernels.tree_attention.cases import CASES
from pallas_kernels.tree_attention.tiles import HOPPER_ROOM, ROOM, Sizes, Tiles, channel_parts, choose
from pallas_kernels.tree_attention.triton_kernel import attend
from tests.oracles.heap_tree import ancestors
from tests.oracles.masked_attention import check

TILES = {
    "one_node": Tiles(16, 16, 1, 4, 2),
    "empty_prefix": Tiles(16, 16, 2, 4, 2),
    "full_cache": Tiles(16, 16, 1, 4, 2),
    "ragged": Tiles(32, 16, 2, 4, 2),
    "tile_edges": Tiles(16, 16, 1, 4, 2),
    "latent_wide_tree": Tiles(64, 32, 3, 4, 2),
    "drafter_window": Tiles(16, 16, 2, 4, 2),
    "bfloat16": Tiles(64, 32, 1, 4, 2),
    "budget_1024": Tiles(64, 32, 1, 4, 2),
}
"""Tiles that cut the cases' rows, keys and contexts."""

static = ("scale", "value_width", "tiles", "interpret")
kernel = partial(jax.jit(attend, static_argnames=static), interpret=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_interpreted_it_equals_one_softmax_under_one_mask(case):
    check(case, partial(kernel, value_width=case.value_width, tiles=TILES[case.name]))


def test_a_slot_that_is_not_a_number_reaches_those_alone_that_see_it():
    random = np.random.default_rng(3)
    q, prefix, block = (random.normal(size=(1, n, 2, 20)).astype(np.float32) for n in (5, 6, 5))
    mask = pack_mask(ancestors(np.array([-1, 0, 0, 1, 2]))[None])

    def attended(keys: np.ndarray) -> np.ndarray:
        parts = (q, prefix, None, keys, None, np.array([6], np.int32), mask)
        return np.asarray(
            kernel(*parts, scale=1.0, lower=None, value_width=16, tiles=Tiles(16, 16, 1, 4, 2))
        )[0]

    whole, bad = attended(block), block.copy()
    bad[0, 1] = np.nan
    found = attended(bad)
    assert np.isnan(found[[1, 3]]).all()
    np.testing.assert_array_equal(found[[0, 2, 4]], whole[[0, 2, 4]])


def chosen(
    N: int,
    H: int,
    J: int,
    key_width: int,
    value_width: int,
    S: int,
    latent: bool,
    *,
    rows=1,
    hopper=True,
    sizes: Sizes | None = None,
) -> Tiles:
    keys, values = channel_parts(key_width, value_width, latent)
    return choose(
        rows=N * H // J,
        programs=rows * J,
        cache=S,
        keys=keys,
        values=values,
        latent=latent,
        itemsize=2,
        hopper=hopper,
        processors=132,
        sizes=sizes or Sizes(64, 2, 128, 32, 4, 2, 1, 512),
    )


def shapes(
    N: int, H: int, J: int, key_width: int, value_width: int, S: int, latent: bool, dtype: str
) -> tuple:
    """What `tree_attention` takes, without data."""

    def array(*sizes: int, dtype=dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    prefix, block = (
        (array(1, slots, J, key_width), None if latent else array(1, slots, J, value_width))
        for slots in (S, N)
    )
    others = array(1, dtype=jnp.int32), array(1, N, 2, dtype=jnp.uint32)
    return array(1, N, H, key_width), *prefix, *block, *others


@pytest.mark.parametrize(
    "shape",
    [
        (17, 8, 1, 80, 64, 512, True),
        (8, 8, 4, 64, 64, 512, False),
        (33, 9, 3, 64, 64, 512, False),
        (17, 64, 1, 576, 512, 32_768, True),
        (17, 32, 8, 128, 128, 4_096, False),
    ],
    ids=["bundled_target", "bundled_drafter", "smollm2", "kimi_k26", "qwen3_4b"],
)
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_dispatch_takes_it_on_a_gpu_and_it_lowers_for_cuda(shape, hopper):
    N, _, _, key_width, value_width, S, latent = shape
    named = "triton" if key_width > WIDE else None
    arrays = shapes(*shape, "bfloat16")
    lower = None if latent else jax.ShapeDtypeStruct((1, N), jnp.int32)

    @jax.jit
    def attended(*arrays, lower):
        width = value_width if latent else None
        return tree_attention(*arrays, scale=0.1, lower=lower, value_width=width, implementation=named)

    with hopper, traced_kernels() as ran:
        lowered = attended.trace(*arrays, lower=lower).lower(lowering_platforms=("cuda",))
    assert ran == {"tree_attention": "triton"}
    # One kernel, or two where the context is cut: there the device's sizes decide.
    assert lowered.as_text().count("xla.gpu.triton") in ((1, 2) if S < 4096 else (2,))


def test_wide_keys_go_to_xla_unless_it_is_named(hopper):
    jax.local_devices()[0].compute_capability = "8.9"
    with traced_kernels() as ran:
        jax.eval_shape(
            partial(tree_attention, scale=0.1, value_width=512),
            *shapes(17, 8, 1, 576, 512, 1024, True, "bfloat16"),
        )
    assert ran == {"tree_attention": "xla"}


@pytest.mark.parametrize(
    ("dtype", "capability", "latent", "reason"),
    [
        ("float32", "9.0", True, "512 value channels in float32"),
        ("bfloat16", "9.0", False, "576 key and 512 value channels"),
        ("float16", "9.0", True, "dtypes float16"),
        ("bfloat16", "7.5", True, "needs compute capability 8.0, not 7.5"),
        ("bfloat16", "gfx942", True, "needs compute capability 8.0, not gfx942"),
    ],
)
def test_what_it_cannot_do_is_refused(dtype, capability, latent, reason, hopper):
    jax.local_devices()[0].compute_capability = capability
    arrays = shapes(17, 8, 1, 576, 512, 64, latent, dtype)
    attended = partial(tree_attention, scale=0.1, value_width=512, implementation="triton")
    with pytest.raises(NotImplementedError, match=reason):
        jax.eval_shape(attended, *arrays)


def test_it_is_a_plain_call_inside_shard_map():
    random = np.random.default_rng(5)
    q, prefix, block = (
        random.normal(size=(1, n, heads, 16)).astype(np.float32) for n, heads in ((5, 4), (20, 2), (5, 2))
    )
    arrays = (q, prefix, prefix, block, block, np.array([19], np.int32), causal_mask(5))
    attended = partial(kernel, scale=0.25, lower=None, value_width=16, tiles=Tiles(16, 16, 1, 4, 2))
    heads, whole = PartitionSpec(None, None, "heads"), PartitionSpec()
    mesh = jax.make_mesh(
        (2,), ("heads",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
    )
    spread = jax.shard_map(
        attended, mesh=mesh, in_specs=(heads,) * 5 + (whole,) * 2, out_specs=heads, check_vma=False
    )
    np.testing.assert_allclose(jax.jit(spread)(*arrays), attended(*arrays), rtol=1e-6, atol=1e-6)


def test_channels_are_cut_into_powers_of_two():
    assert parts_of(0, 576) == (Part(0, 512, 512), Part(512, 64, 64))
    assert parts_of(64, 27) == (Part(64, 16, 16), Part(80, 11, 16))
    assert channel_parts(24, 20, True) == (
        (Part(0, 16, 16), Part(16, 4, 16), Part(20, 4, 16)),
        (Part(0, 16, 16), Part(16, 4, 16)),
    )


def test_short_contexts_are_one_kernel_and_long_ones_fill_the_chip():
    assert chosen(17, 8, 1, 80, 64, 512, True).splits == 1
    long = chosen(17, 8, 1, 576, 512, 131_072, True)
    assert 100 <= long.splits * -(-17 * 8 // long.rows) <= 132
    assert chosen(17, 64, 1, 576, 512, 131_072, True, rows=64).splits == 1


def test_a_second_wave_comes_where_one_leaves_long_splits():
    sizes = Sizes(64, 2, 64, 32, 4, 3, 2, 128)
    slots = {1: 9, 16: 9, 24: 8, 72: 6}
    for width, splits in slots.items():
        assert chosen(width, 32, 8, 128, 128, 1152, False, sizes=sizes).splits == splits
    assert chosen(24, 32, 8, 128, 128, 4096, False, sizes=sizes).splits == 16


@pytest.mark.parametrize(("hopper", "room"), [(True, HOPPER_ROOM), (False, ROOM)])
@pytest.mark.parametrize("widths", [(64, 64, False), (128, 128, False), (80, 64, True), (256, 128, False)])
def test_what_is_in_flight_fits_shared_memory(widths, hopper, room):
    key_width, value_width, latent = widths
    tiles = chosen(17, 8, 8, key_width, value_width, 4096, latent, hopper=hopper)
    assert tiles.keys * tiles.stages * (key_width + (0 if latent else value_width)) * 2 <= room


def test_off_a_gpu_it_is_refused():
    array = jnp.ones((1, 1, 1, 16))
    arrays = (array, array, array, array, array, jnp.ones(1, jnp.int32), causal_mask(1))
    with pytest.raises(NotImplementedError, match="a kernel for GPUs"):
        tree_attention(*arrays, scale=1.0, implementation="triton")
