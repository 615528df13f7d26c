"""The kernel that normalises and rotates heads: interpreted against the reference, and lowered for CUDA."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels.dispatch import traced_kernels
from pallas_kernels.rotary import reference, triton
from pallas_kernels.rotary.api import rotate

EPS = 1e-6


class Case(NamedTuple):
    """What `rotate` takes."""

    heads: tuple[jax.Array, ...]
    values: jax.Array
    weights: tuple[jax.Array | None, ...]
    cos: jax.Array
    sin: jax.Array


def drawn(rows: int, slots: int, counts: tuple[int, ...], width: int, dtype=jnp.float32) -> Case:
    """Random heads, so many an array, as many values as the last has, and weights, cosines and sines."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape), dtype)

    *heads, values = (normal(rows, slots, count, width) for count in (*counts, counts[-1]))
    angles = random.uniform(0, 1e4, (rows, slots, width // 2)).astype(np.float32)
    weights = tuple(1 + normal(width) / 4 for _ in counts)
    return Case(tuple(heads), values, weights, jnp.cos(angles), jnp.sin(angles))


def interpreted(case: Case) -> tuple[jax.Array, ...]:
    """What the kernel finds."""
    run = jax.jit(
        partial(triton.rotate, eps=EPS, interpret=True),
        # Else XLA leaves out roundings to bfloat16 on a CPU.
        compiler_options={"xla_allow_excess_precision": False},
    )
    return run(*case)


def assert_close(found: tuple[jax.Array, ...], case: Case) -> None:
    """Within a rounding or two of float32 of the reference; the values exactly."""
    wanted = jax.jit(partial(reference.rotate, eps=EPS))(*case)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[-1], case.values)


@pytest.mark.parametrize(
    ("rows", "slots", "counts", "width"),
    [(1, 1, (32, 8), 128), (2, 17, (9, 3), 64), (3, 5, (1, 1), 256), (1, 7, (6,), 80), (1, 1, (5,), 2)],
)
@pytest.mark.parametrize("normed", [True, False])
def test_interpreted_it_equals_the_reference(rows, slots, counts, width, normed):
    case = drawn(rows, slots, counts, width)
    if not normed:
        case = case._replace(weights=(None,) * len(counts))
    assert_close(interpreted(case), case)


def test_queries_may_be_normalised_and_keys_not():
    case = drawn(1, 3, (4, 2), 16)
    case = case._replace(weights=(case.weights[0], None))
    assert_close(interpreted(case), case)


def test_in_bfloat16_it_rounds_where_the_reference_does():
    case = drawn(2, 17, (32, 8), 128, jnp.bfloat16)
    # Operation by operation: compiled, the reference may leave out roundings too.
    for one, other in zip(interpreted(case), reference.rotate(*case, eps=EPS), strict=True):
        assert one.dtype == jnp.bfloat16
        assert jnp.mean(one == other) > 0.999


def test_a_head_that_is_no_number_spoils_no_other():
    case = drawn(1, 3, (5, 2), 16)
    queries, keys = case.heads
    q, k, v = map(np.isnan, interpreted(case._replace(heads=(queries.at[0, 1, 2].set(jnp.nan), keys))))
    assert q[0, 1, 2].all() and q.sum() == q[0, 1, 2].size
    assert not k.any() and not v.any()


def test_it_is_a_plain_call_inside_shard_map():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    case, cut, whole = drawn(1, 3, (4, 2), 16), PartitionSpec(None, None, "x"), PartitionSpec()
    spread = jax.shard_map(
        partial(triton.rotate, eps=EPS, interpret=True),
        mesh=mesh,
        in_specs=(cut, cut, whole, whole, whole),
        out_specs=cut,
        check_vma=False,
    )
    assert_close(jax.jit(spread)(*case), case)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("weight", "taken"), [(jnp.bfloat16, "triton"), (jnp.float32, "xla")])
@pytest.mark.parametrize("slots", [1, 17])
def test_gpus_take_it_unless_dtypes_are_mixed(slots, weight, taken, hopper):
    case = drawn(1, slots, (32, 8), 128, jnp.bfloat16)
    case = case._replace(weights=tuple(each.astype(weight) for each in case.weights))
    with hopper, traced_kernels() as ran:
        text = jax.jit(partial(rotate, eps=EPS)).trace(*case).lower(lowering_platforms=("cuda",)).as_text()
    assert ran == {"rotary": taken}
    assert ("xla.gpu.triton" in text) == (taken == "triton")
