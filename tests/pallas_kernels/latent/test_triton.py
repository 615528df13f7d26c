"""The kernel that finishes latents: interpreted against the reference, and lowered for CUDA."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import traced_kernels
from pallas_kernels.latent import reference, triton
from pallas_kernels.latent.api import prepare

EPS = 1e-6


def drawn(
    rows: int, slots: int, low: int, rank: int, rotated: int, dtype=jnp.float32
) -> tuple[jax.Array, ...]:
    """Queries, keys and values, both weights, cosines and sines."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape), dtype)

    angles = random.uniform(0, 1e4, (rows, slots, rotated // 2)).astype(np.float32)
    q, kv = normal(rows, slots, low), normal(rows, slots, rank + rotated)
    return q, kv, 1 + normal(low) / 4, 1 + normal(rank) / 4, jnp.cos(angles), jnp.sin(angles)


def both(case: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """What the kernel finds, interpreted, and the reference."""
    # Else XLA leaves out roundings to bfloat16 on a CPU.
    exact = partial(jax.jit, compiler_options={"xla_allow_excess_precision": False})
    found = exact(partial(triton.prepare, eps=EPS, interpret=True))(*case)
    return found, exact(partial(reference.prepare, eps=EPS))(*case)


@pytest.mark.parametrize("shape", [(1, 1, 1536, 512, 64), (2, 17, 64, 128, 16), (3, 5, 40, 24, 6)])
def test_interpreted_it_equals_the_reference(shape):
    for one, other in zip(*both(drawn(*shape)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_bfloat16_rounds_where_the_reference_does():
    for one, other in zip(*both(drawn(1, 17, 1536, 512, 64, jnp.bfloat16)), strict=True):
        assert one.dtype == jnp.bfloat16
        assert np.mean(np.asarray(one) == np.asarray(other)) > 0.999
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (one, other)), rtol=2**-7)


def test_other_dtypes_are_refused():
    q, *rest = drawn(1, 2, 8, 8, 4)
    with pytest.raises(NotImplementedError, match="dtypes bfloat16, float32"):
        triton.prepare(q.astype(jnp.bfloat16), *rest, eps=EPS, interpret=True)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("slots", [1, 17])
def test_on_a_gpu_it_is_taken_and_lowers(slots, hopper):
    with hopper, traced_kernels() as ran:
        program = jax.jit(partial(prepare, eps=EPS)).trace(*drawn(1, slots, 1536, 512, 64))
        text = program.lower(lowering_platforms=("cuda",)).as_text()
    assert ran == {"latent": "triton"}
    assert text.count("triton") >= 1
