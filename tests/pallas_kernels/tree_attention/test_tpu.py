"""The TPU kernel: over the named cases in interpret mode, under the TPU simulator, and compiled for TPUs that
are not here.
"""

import importlib.util
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.dispatch import traced_kernels
from pallas_kernels.tree_attention.api import causal_mask, pack_mask, tree_attention
from pallas_kernels.tree_attention.cases import CASES, Case
from pallas_kernels.tree_attention.tpu import Sizes, choose
from pallas_kernels.tree_attention.tpu_kernel import Tiles, attend
from tests.oracles.heap_tree import ancestors
from tests.oracles.masked_attention import check

static = ("scale", "value_width", "tiles", "interpret")
compiled = jax.jit(attend, static_argnames=static)


def kernel(*arrays, lower=None, interpret: bool | pltpu.InterpretParams = True, **options) -> jax.Array:
    assert lower is None
    return compiled(*arrays, interpret=interpret, **options)


ROWS = {"latent_wide_tree": 64, "ragged": 32, "budget_1024": 512}
"""Query rows a tile where a case has more."""

SPLITS = {"ragged": 2, "empty_prefix": 2, "latent_wide_tree": 2, "wide_pairs": 2}


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.window is None]
    + [
        Case("wide", 2, 9, 4, 2, 128, 128, 48, (20, 48), "random"),
        Case("wide_pairs", 2, 9, 4, 2, 128, 128, 48, (20, 48), "random", dtype="bfloat16"),
        Case("wide_single", 1, 1, 2, 1, 128, 128, 40, (35,), "random"),
    ],
    ids=lambda case: case.name,
)
def test_interpreted_it_equals_one_softmax_under_one_mask(case):
    rows = ROWS.get(case.name, case.slots * case.heads // case.key_heads)
    tiles = Tiles(rows, min(16, case.cache), SPLITS.get(case.name, 1), 1 << 24)
    check(case, partial(kernel, value_width=case.value_width, tiles=tiles))


@pytest.mark.parametrize("width", [20, 128])
def test_a_slot_that_is_not_a_number_reaches_those_alone_that_see_it(width):
    random = np.random.default_rng(3)
    q, prefix, block = (random.normal(size=(1, n, 2, width)).astype(np.float32) for n in (5, 6, 5))
    mask = pack_mask(ancestors(np.array([-1, 0, 0, 1, 2]))[None])

    def attended(keys: np.ndarray) -> np.ndarray:
        parts = (q, prefix, None, keys, None, np.array([6], np.int32), mask)
        return np.asarray(kernel(*parts, scale=1.0, value_width=width, tiles=Tiles(5, 4, 1, 1 << 24)))[0]

    whole, bad = attended(block), block.copy()
    bad[0, 1] = np.nan
    found = attended(bad)
    assert np.isnan(found[[1, 3]]).all()
    np.testing.assert_array_equal(found[[0, 2, 4]], whole[[0, 2, 4]])


def test_simulated_on_two_cores_no_copy_is_read_too_early(capsys):
    case = Case("simulated", 2, 17, 4, 2, 24, 24, 40, (0, 20), "random", dtype="bfloat16")
    simulator = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2)
    check(case, partial(kernel, value_width=24, tiles=Tiles(34, 16, 1, 1 << 24), interpret=simulator))
    assert "RACE DETECTED" not in capsys.readouterr().out


SHAPES = {
    "kimi_k26": (17, 64, 1, 576, 512, 32_768, True),
    "kimi_k26_tp8": (17, 8, 1, 576, 512, 32_768, True),
    "qwen3_4b": (17, 32, 8, 128, 128, 4_096, False),
    "bundled_target": (17, 8, 1, 80, 64, 512, True),
    "bundled_drafter": (8, 8, 4, 64, 64, 512, False),
}


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.parametrize(
    ("topology", "name"),
    [("v5e:2x2", name) for name in SHAPES]
    + [(chip, name) for chip in ("v5p:2x2x1", "v6e:2x2") for name in ("kimi_k26_tp8", "qwen3_4b")],
)
def test_dispatch_takes_it_for_a_tpu_and_the_compiler_does(mesh, name):
    N, H, J, key_width, value_width, S, latent = SHAPES[name]
    whole = jax.sharding.PartitionSpec()

    def array(*sizes: int, dtype=jnp.bfloat16) -> jax.ShapeDtypeStruct:
        place = jax.sharding.NamedSharding(mesh, whole)
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=place)

    def keys(slots: int) -> list:
        return [array(1, slots, J, key_width), None if latent else array(1, slots, J, value_width)]

    attended = partial(tree_attention, scale=0.1, value_width=value_width if latent else None)
    spread = jax.shard_map(attended, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    arrays = (
        *(array(1, N, H, key_width), *keys(S), *keys(N)),
        *(array(1, dtype=jnp.int32), array(1, N, 1, dtype=jnp.uint32)),
    )
    with traced_kernels() as ran:
        program = jax.jit(spread).lower(*arrays).compile()
    assert ran == {"tree_attention": "mosaic_tpu"}
    # The cache is read as it lies.
    copies = [line for line in program.as_text().splitlines() if " copy(" in line]
    assert not [line for line in copies if f"[1,{S},{J},{key_width}]" in line]


@pytest.mark.parametrize("room", [32 << 20, 64 << 20])
@pytest.mark.parametrize("widths", [(1, 576, 512, True), (8, 128, 128, False), (32, 128, 128, False)])
def test_few_query_rows_read_the_cache_once_and_many_fit(widths, room):
    heads, key_width, value_width, latent = widths
    chosen = partial(
        choose,
        cache=4096,
        heads=heads,
        key_width=key_width,
        value_width=value_width,
        latent=latent,
        itemsize=2,
        room=room,
        sizes=Sizes(2 << 20, 1024, 128, 1152),
    )
    few, keys = chosen(rows=68)
    many, _ = chosen(rows=65_600)
    assert few == 68
    assert keys == {1: 1024, 8: 512, 32: 128}[heads]
    held = 2 * keys * heads * (key_width + (0 if latent else value_width)) * 2
    queries = many * heads * (2 * 2 * key_width + 12 * value_width)
    assert held + queries < room


def test_off_a_tpu_it_is_refused():
    array = jnp.ones((1, 1, 1, 16))
    arrays = (array, array, array, array, array, jnp.ones(1, jnp.int32), causal_mask(1))
    with pytest.raises(NotImplementedError, match="a kernel for TPUs"):
        tree_attention(*arrays, scale=1.0, implementation="mosaic_tpu")
