"""Kernels of dense products: interpreted against the reference, and lowered for CUDA."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels.dense import api, reference, triton
from pallas_kernels.dispatch import traced_kernels

EPS = 1e-6

# Else XLA leaves out roundings to bfloat16 on a CPU.
exact = partial(jax.jit, compiler_options={"xla_allow_excess_precision": False})


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    """Random numbers."""
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=shape), jnp.bfloat16)


def weights(inputs: int, *features: int) -> tuple[jax.Array, ...]:
    """Random ones, [features, inputs] each."""
    return tuple(normal(9 + i, out, inputs, scale=inputs**-0.5) for i, out in enumerate(features))


def assert_close(found: jax.Array, wanted: jax.Array, same: float = 0.98) -> None:
    """Within two roundings to bfloat16, and mostly none: sums in float32 differ in their order."""
    assert found.dtype == wanted.dtype == jnp.bfloat16
    assert jnp.mean(found == wanted) > same
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (found, wanted)), rtol=2**-6, atol=2**-9)


@pytest.mark.parametrize("tokens", [1, 16, 17, 63, 80])
@pytest.mark.parametrize("features", [(64,), (128, 64, 64)])
def test_products_equal_the_reference(tokens, features):
    x, parts = normal(1, tokens, 512), weights(512, *features)
    found = exact(partial(triton.products, interpret=True))(x, parts)
    for one, other in zip(found, exact(reference.products)(x, parts), strict=True):
        assert one.shape == other.shape
        assert_close(one, other)


@pytest.mark.parametrize("tokens", [1, 17])
def test_swiglu_equals_the_reference(tokens):
    x, gate_up = normal(1, tokens, 512), jnp.stack(weights(512, 48, 48))
    # The reference's sigmoid is rounded once more.
    found = exact(partial(triton.swiglu, interpret=True))(x, gate_up)
    assert_close(found, exact(reference.swiglu)(x, gate_up), same=0.5)


@pytest.mark.parametrize(("tokens", "inputs", "width"), [(1, 1024, 320), (2, 1024, 64), (16, 512, 64)])
def test_sums_equal_the_reference(tokens, inputs, width):
    (weight,) = weights(inputs, width)
    given = normal(1, tokens, inputs), weight, normal(2, tokens, width), 1 + normal(3, width, scale=0.25)
    found = exact(partial(triton.added, eps=EPS, interpret=True))(*given)
    for one, other in zip(found, exact(partial(reference.added, eps=EPS))(*given), strict=True):
        assert_close(one, other)


def test_a_token_that_is_no_number_spoils_no_other():
    x = normal(1, 16, 512).at[3, 5].set(jnp.nan)
    (weight,) = weights(512, 64)
    residual, norm = normal(2, 16, 64), jnp.ones(64, jnp.bfloat16)
    for found in triton.added(x, weight, residual, norm, eps=EPS, interpret=True):
        spoilt = np.isnan(np.asarray(found, np.float32))
        assert spoilt[3].all() and spoilt.sum() == 64


def test_it_is_a_plain_call_inside_shard_map():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    x, parts, cut = normal(1, 17, 512), weights(512, 128, 128), PartitionSpec("x")
    spread = jax.shard_map(
        partial(triton.products, interpret=True),
        mesh=mesh,
        in_specs=(PartitionSpec(), cut),
        out_specs=PartitionSpec(None, "x"),
        check_vma=False,
    )
    for one, other in zip(jax.jit(spread)(x, parts), reference.products(x, parts), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(
    ("tokens", "inputs", "features", "dtype"),
    [(81, 512, 64, "bfloat16"), (1, 576, 64, "bfloat16"), (17, 512, 96, "bfloat16"), (1, 512, 64, "float32")],
)
def test_what_tiles_do_not_serve_is_refused(tokens, inputs, features, dtype):
    x, (weight,) = normal(1, tokens, inputs), weights(inputs, features)
    with pytest.raises(NotImplementedError):
        triton.products(x.astype(dtype), (weight.astype(dtype),), interpret=True)


def test_a_sum_wider_than_its_inputs_is_refused():
    (weight,) = weights(512, 1024)
    with pytest.raises(NotImplementedError, match="512 inputs are fewer than 1024 features"):
        triton.added(normal(1, 1, 512), weight, normal(2, 1, 1024), normal(3, 1024), eps=EPS, interpret=True)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("tokens", "swiglu", "added"), [(1, *2 * ["triton"]), (17, "triton", "xla"), (65, *2 * ["xla"])]
)
def test_on_a_hopper_gpu_they_are_taken_and_lower(tokens, swiglu, added, hopper):
    x, (q, k), (down,) = normal(1, tokens, 512), weights(512, 1024, 64), weights(1024, 512)

    def layer(x):
        total, normed = api.added(api.swiglu(x, jnp.stack([q, q])), down, x, x[0], eps=EPS)
        return api.products(normed, (q, k, k)), total

    with hopper, traced_kernels() as ran:
        text = jax.jit(layer).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert ran == {"dense_products": "triton", "dense_swiglu": swiglu, "dense_added": added}
    # A sum takes two.
    assert text.count("xla.gpu.triton") == 1 + (swiglu == "triton") + 2 * (added == "triton")


def test_other_gpus_use_plain_jax(hopper, monkeypatch):
    monkeypatch.setattr(jax.local_devices()[0], "compute_capability", "12.0")
    with hopper, traced_kernels() as ran:
        jax.eval_shape(api.products, normal(1, 1, 512), weights(512, 64))
    assert ran == {"dense_products": "xla"}
