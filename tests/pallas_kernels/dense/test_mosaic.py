"""Kernels of dense products: in JAX's simulator of a GPU against the reference, and lowered for CUDA."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels.dense import api, mosaic, reference
from pallas_kernels.dense.unnormed import Unnormed
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


@pytest.mark.parametrize(
    ("tokens", "features", "sizes"),
    [
        (1, (64,), mosaic.Sizes(64, 2, 1)),
        (1, (128, 64, 64), mosaic.Sizes(64, 3, 1)),
        (1, (64,), mosaic.Sizes(128, 1, 1)),
        (16, (128, 64, 64), mosaic.Sizes(128, 2, 8)),
        (80, (64, 64), mosaic.Sizes(128, 9, 1)),
    ],
    ids=["one weight", "three", "a step in flight", "in splits", "all in flight"],
)
def test_products_equal_the_reference_and_no_copy_is_read_too_early(tokens, features, sizes, capsys):
    x, parts = normal(1, tokens, 512), weights(512, *features)
    found = mosaic.products(x, parts, sizes=sizes, interpret=True)
    for one, other in zip(found, exact(reference.products)(x, parts), strict=True):
        assert one.shape == other.shape
        assert_close(one, other)
    assert "RACE DETECTED" not in capsys.readouterr().out


@pytest.mark.parametrize("tokens", [1, 24])
def test_swiglu_equals_the_reference(tokens):
    x, gate_up = normal(1, tokens, 512), jnp.stack(weights(512, 64, 64))
    # The reference's sigmoid is rounded once more.
    found = mosaic.swiglu(x, gate_up, sizes=mosaic.Sizes(64, 3, 1), interpret=True)
    assert_close(found, exact(reference.swiglu)(x, gate_up), same=0.5)


@pytest.mark.parametrize(("tokens", "inputs", "width"), [(1, 1024, 320), (7, 512, 64), (16, 512, 64)])
def test_sums_equal_the_reference(tokens, inputs, width):
    (weight,) = weights(inputs, width)
    given = normal(1, tokens, inputs), weight, normal(2, tokens, width), 1 + normal(3, width, scale=0.25)
    sizes = mosaic.Sizes(128, 2, 10)
    found = exact(partial(mosaic.added, eps=EPS, sizes=sizes, interpret=True))(*given)
    for one, other in zip(found, exact(partial(reference.added, eps=EPS))(*given), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(
    "sizes", [mosaic.Sizes(64, 3, 1), mosaic.Sizes(128, 2, 8)], ids=["whole", "in splits"]
)
def test_a_norm_left_to_the_products_is_the_one_that_was_not_left(sizes, capsys):
    (weight,), parts = weights(1024, 512), weights(512, 128, 64)
    given = normal(1, 1, 1024), weight, normal(2, 1, 512), 1 + normal(3, 512, scale=0.25)
    added = partial(mosaic.added, eps=EPS, sizes=mosaic.Sizes(128, 2, 10), interpret=True)
    (total, left), (same, normed) = exact(partial(added, unnormed=True))(*given), exact(added)(*given)
    assert isinstance(left, Unnormed) and isinstance(normed, jax.Array)
    assert left.shape == normed.shape and jnp.array_equal(total, same)
    assert_close(exact(Unnormed.normed)(left), normed)
    found = exact(partial(mosaic.products, sizes=sizes, interpret=True))(left, parts)
    for one, other in zip(found, exact(reference.products)(normed, parts), strict=True):
        assert_close(one, other)
    gate_up = jnp.stack(weights(512, 64, 64))
    found = exact(partial(mosaic.swiglu, sizes=mosaic.Sizes(64, 3, 1), interpret=True))(left, gate_up)
    assert_close(found, exact(reference.swiglu)(left, gate_up), same=0.5)
    assert "RACE DETECTED" not in capsys.readouterr().out


@pytest.mark.parametrize(("tokens", "width"), [(7, 512), (1, 320), (1, 3584)], ids=["seven", "odd", "wide"])
def test_other_norms_are_not_left(tokens, width):
    (weight,) = weights(3584, width)
    given = normal(1, tokens, 3584), weight, normal(2, tokens, width), normal(3, width)
    for each in jax.eval_shape(partial(mosaic.added, eps=EPS, unnormed=True, interpret=True), *given):
        assert isinstance(each, jax.ShapeDtypeStruct) and each.shape == (tokens, width)


def test_a_token_that_is_no_number_spoils_no_other():
    x = normal(1, 16, 512).at[3, 5].set(jnp.nan)
    (weight,) = weights(512, 64)
    residual, norm = normal(2, 16, 64), jnp.ones(64, jnp.bfloat16)
    for found in mosaic.added(x, weight, residual, norm, eps=EPS, interpret=True):
        spoilt = np.isnan(np.asarray(found, np.float32))
        assert spoilt[3].all() and spoilt.sum() == 64


@pytest.mark.parametrize(
    ("tokens", "inputs", "features", "dtype"),
    [
        (88, 512, 64, "bfloat16"),
        (17, 512, 64, "bfloat16"),
        (0, 512, 64, "bfloat16"),
        (1, 576, 64, "bfloat16"),
        (24, 512, 96, "bfloat16"),
        (1, 512, 64, "float32"),
    ],
)
def test_what_programs_do_not_serve_is_refused(tokens, inputs, features, dtype):
    x, (weight,) = normal(1, tokens, inputs), weights(inputs, features)
    with pytest.raises(NotImplementedError):
        mosaic.products(x.astype(dtype), (weight.astype(dtype),), interpret=True)


@pytest.mark.parametrize("width", [320, 3584], ids=["odd", "wide"])
def test_norms_that_the_prologue_does_not_serve_are_refused(width):
    left = Unnormed(jnp.ones((2, 1, width)), normal(1, 1, width), normal(2, width), EPS)
    with pytest.raises(NotImplementedError, match=f"a norm of {width} channels"):
        mosaic.products(left, weights(width, 64), interpret=True)


def test_weights_of_other_inputs_are_named():
    with pytest.raises(ValueError, match=r"\(64, 512\)\] do not fit tokens of 256"):
        mosaic.products(normal(1, 1, 256), weights(512, 64), interpret=True)


def test_what_does_not_fit_a_sum_and_sizes_that_no_step_can_have_are_named():
    x, (weight,) = normal(1, 1, 512), weights(512, 64)
    with pytest.raises(ValueError, match=r"residual \(1, 128\) and norm \(64,\) do not fit 1 x 64 outputs"):
        mosaic.added(x, weight, normal(2, 1, 128), normal(3, 64), eps=EPS, interpret=True)
    with pytest.raises(ValueError, match="dense_products_32: steps of 96 inputs, which 64 does not divide"):
        mosaic.products(x, (weight,), sizes=mosaic.Sizes(96, 2, 1), interpret=True)


def test_a_sum_wider_than_its_inputs_is_a_product_and_of_a_single_token_refused():
    (weight,) = weights(512, 1024)
    given = normal(1, 8, 512), weight, normal(2, 8, 1024), normal(3, 1024)
    found = exact(partial(mosaic.added, eps=EPS, interpret=True))(*given)
    for one, other in zip(found, exact(partial(reference.added, eps=EPS))(*given), strict=True):
        assert_close(one, other)
    with pytest.raises(NotImplementedError, match="512 inputs are fewer than 1024 features"):
        mosaic.added(normal(1, 1, 512), weight, normal(2, 1, 1024), normal(3, 1024), eps=EPS, interpret=True)


@pytest.mark.parametrize(
    ("rows", "slots", "taken"),
    [(1, 1, 1), (1, 8, 8), (3, 2, 2), (1, 17, 24), (2, 17, 20), (8, 9, 9), (1, 65, 72), (2, 41, 41)],
)
def test_slots_are_a_few_more_where_that_serves_products(rows, slots, taken, hopper):
    with hopper:
        assert api.whole_slots(rows, slots, jnp.dtype(jnp.bfloat16)) == taken
        assert api.whole_slots(rows, slots, jnp.dtype(jnp.float32)) == slots


def test_slots_are_as_many_elsewhere():
    assert api.whole_slots(1, 17, jnp.dtype(jnp.bfloat16)) == 17


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("tokens", "taken"), [(1, "mosaic_gpu"), (24, "mosaic_gpu"), (80, "mosaic_gpu"), (17, "xla"), (88, "xla")]
)
def test_on_a_hopper_gpu_they_are_taken_and_lower(tokens, taken, hopper):
    x, (q, k), (down,) = normal(1, tokens, 512), weights(512, 1024, 64), weights(1024, 512)

    def layer(x):
        inner = api.swiglu(x, jnp.stack([q, q]))
        total, normed = api.added(inner, down, x, x[0], eps=EPS, unnormed=True)
        return api.products(normed, (q, k, k)), total

    with hopper, traced_kernels() as ran:
        text = jax.jit(layer).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert ran == dict.fromkeys(("dense_products", "dense_swiglu", "dense_added"), taken)
    assert text.count("stablehlo.custom_call @mosaic_gpu") == 3 * (taken == "mosaic_gpu")
    # A single token is summed and normalised by the products that follow.
    assert text.count("xla.gpu.triton") == (taken == "mosaic_gpu" and tokens > 1)


def test_it_is_a_plain_call_inside_shard_map(hopper):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    cut = PartitionSpec("x")
    with hopper:
        spread = jax.shard_map(
            mosaic.products, mesh=mesh, in_specs=(PartitionSpec(), cut), out_specs=PartitionSpec(None, "x")
        )
        program = jax.jit(spread).trace(normal(1, 24, 512), weights(512, 128, 128))
        text = program.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call @mosaic_gpu") == 1


def test_other_gpus_use_plain_jax(hopper, monkeypatch):
    monkeypatch.setattr(jax.local_devices()[0], "compute_capability", "12.0")
    with hopper, traced_kernels() as ran:
        jax.eval_shape(api.products, normal(1, 1, 512), weights(512, 64))
    assert ran == {"dense_products": "xla"}
