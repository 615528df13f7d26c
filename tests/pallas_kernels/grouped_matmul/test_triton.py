"""The Triton kernel for routed experts: interpreted over the named cases, and its lowering for CUDA without a
GPU.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import traced_kernels
from pallas_kernels.grouped_matmul import tiles
from pallas_kernels.grouped_matmul.api import Experts, Int4, expert_mlp
from pallas_kernels.grouped_matmul.cases import CASES, Case
from pallas_kernels.grouped_matmul.triton import Sizes
from pallas_kernels.grouped_matmul.triton_kernel import ROOM, Tiles, choose, multiply
from tests.oracles.routed_experts import check, weights

SIZES = Sizes(most_rows=128, strip=64, programs=200, words=32, stages=3, warps=4, warps_of_many=8)


@pytest.mark.parametrize(
    ("case", "rounding"),
    [(case, "bfloat16") for case in CASES if case.packed]
    + [
        (CASES[1], "float32"),
        (
            Case("words_end_inside_a_step", 3, 320, 48, 4, 2, "random", packed=True, dtype="bfloat16"),
            "bfloat16",
        ),
    ],
    ids=lambda each: each.name if isinstance(each, Case) else each,
)
def test_interpreted_it_equals_the_reference(case, rounding):
    check(case, rounding, partial(multiply, sizes=SIZES, interpret=True))


def shapes(tokens: int, inner: int, hidden: int, count: int, dtype: str = "bfloat16") -> tuple:
    """What `expert_mlp` takes, without data."""

    def array(*sizes: int, dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    def weight(out: int, inputs: int) -> Int4:
        packed = array(count, out, inputs // 8, dtype="int32")
        return Int4(packed, array(count, out, inputs // 32, dtype="bfloat16"))

    experts = Experts(weight(inner, hidden), weight(inner, hidden), weight(hidden, inner))
    chosen = min(8, count)
    return (
        array(tokens, hidden, dtype=dtype),
        array(tokens, chosen, dtype="int32"),
        array(tokens, chosen, dtype="float32"),
        experts,
    )


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("tokens", [1, 33, 300])
def test_dispatch_takes_it_on_other_gpus_and_it_lowers_for_cuda(tokens, hopper):
    jax.local_devices()[0].compute_capability = "12.0"
    mlp = jax.jit(partial(expert_mlp, rounding="bfloat16"))
    with hopper, traced_kernels() as ran:
        lowered = mlp.trace(*shapes(tokens, 256, 7168, 384)).lower(lowering_platforms=("cuda",))
    assert ran == {"grouped_matmul": "triton"}
    assert lowered.as_text().count("xla.gpu.triton") == 2


@pytest.mark.parametrize(
    ("sizes", "dtype", "capability", "reason"),
    [
        ((1, 256, 512, 8), "bfloat16", "7.5", "needs compute capability 8.0, not 7.5"),
        ((1, 256, 512, 8), "float32", "8.0", "1 tokens of float32"),
        ((2000, 256, 512, 8), "bfloat16", "8.0", "2000 tokens of bfloat16"),
    ],
    ids=["old", "float32", "crowd"],
)
def test_what_it_cannot_do_is_refused(sizes, dtype, capability, reason, hopper):
    jax.local_devices()[0].compute_capability = capability
    with pytest.raises(NotImplementedError, match=reason):
        jax.eval_shape(
            partial(expert_mlp, rounding="bfloat16", implementation="triton"), *shapes(*sizes, dtype=dtype)
        )


def test_tiles_and_plain_weights_are_refused(hopper):
    random = np.random.default_rng(0)
    sizes = (64, 128), (64, 128), (128, 64)
    packed, plain = (
        Experts(*(weights(Case("", 1, 128, 64, 2, 1, "one", packed=packed), *size, random) for size in sizes))
        for packed in (True, False)
    )
    x, ids = jnp.ones((1, 128), jnp.bfloat16), jnp.zeros((1, 1), jnp.int32)
    for experts in (tiles.pack(*packed), plain):
        with pytest.raises(NotImplementedError, match="takes INT4 as published"):
            expert_mlp(x, ids, jnp.ones((1, 1)), experts, rounding="bfloat16", implementation="triton")


def test_few_blocks_get_narrow_strips():
    assert [choose(16, blocks, 256, 2, SIZES).strip for blocks in (8, 30, 60)] == [16, 32, 64]
    assert choose(16, 8, 7168, 1, SIZES).strip == 64
    with pytest.raises(NotImplementedError, match="40 outputs are no multiple of 16"):
        choose(16, 8, 40, 1, SIZES)


@pytest.mark.parametrize("rows", [16, 32, 64, 128])
def test_steps_in_flight_fit_shared_memory(rows):
    assert choose(16, 1000, 2048, 2, SIZES) == Tiles(64, 32, 4, 3)
    for count in (1, 2):
        tiles = choose(rows, 1000, 2048, count, replace(SIZES, words=64, stages=4))
        assert tiles.stages >= 2
        assert tiles.stages * tiles.words * (rows * 16 + count * tiles.strip * 6) <= ROOM
