"""Routed experts drawn at random, and the plain-JAX ones to check kernels that take INT4 as published."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.grouped_matmul import as_published
from pallas_kernels.grouped_matmul.api import Experts, Int4, expert_mlp
from pallas_kernels.grouped_matmul.cases import Case

exact = partial(jax.jit, static_argnames=("rounding", "implementation"))(expert_mlp)


def routing(case: Case, random: np.random.Generator) -> np.ndarray:
    """[T, K] int32 expert ids, distinct a token."""
    if case.routing == "one":
        return np.full((case.tokens, case.chosen), case.experts - 1, np.int32)
    ids = np.stack([random.permutation(case.experts)[: case.chosen] for _ in range(case.tokens)])
    if case.routing == "partly_none":
        ids[case.tokens // 2 :] = -1
    return ids.astype(np.int32)


def weights(case: Case, out_size: int, in_size: int, random: np.random.Generator) -> Int4 | jax.Array:
    """One projection of all experts, INT4 where the case is packed."""
    if not case.packed:
        return jnp.asarray(random.normal(size=(case.experts, out_size, in_size)) * in_size**-0.5, case.dtype)
    words = random.integers(-(2**31), 2**31, (case.experts, out_size, in_size // 8), dtype=np.int32)
    scale = random.uniform(0.01, 0.05, (case.experts, out_size, in_size // 32))
    return Int4(jnp.asarray(words), jnp.asarray(scale, jnp.bfloat16))


def check(case: Case, rounding: str, multiply: Callable[..., jax.Array]) -> None:
    """`as_published.blocked` around ``multiply`` gives what the plain-JAX experts give in float32."""
    random = np.random.default_rng(3)
    x = jnp.asarray(random.normal(size=(case.tokens, case.hidden)), case.dtype)
    ids = routing(case, random)
    shares = random.uniform(0.1, 1.0, ids.shape).astype(np.float32)
    shapes = (case.inner, case.hidden), (case.inner, case.hidden), (case.hidden, case.inner)
    experts = Experts(*(weights(case, *shape, random) for shape in shapes))
    product = partial(multiply, rounding=rounding)
    found = jax.jit(partial(as_published.blocked, multiply=product, most_rows=128))(x, ids, shares, experts)
    assert found.dtype == x.dtype
    wide = x.astype(jnp.float32)
    wanted = np.asarray(exact(wide, ids, shares, experts, rounding=rounding, implementation="xla"))
    limit = 1e-2 if case.dtype == "bfloat16" else 2e-6
    assert np.linalg.norm(np.asarray(found, np.float32) - wanted) < limit * np.linalg.norm(wanted)
