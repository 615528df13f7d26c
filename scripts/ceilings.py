"""What a device can do at best, measured."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

RUNS = 6

READS = 8
"""Times that the long array is read in one dispatch, which itself takes a while."""


def ceilings(quick: bool) -> tuple[float, float]:
    """Bytes a second of a long sum and bfloat16 operations a second of a large product, on this device;
    ``quick``: of short ones.
    """
    size, side = (2**20, 256) if quick else (2**31, 8192)
    long = jnp.ones(size // 2, jnp.bfloat16)
    square = jax.random.normal(jax.random.key(0), (side, side), jnp.bfloat16)

    def best(function: Callable, argument: jax.Array) -> float:
        ready = jax.jit(function).lower(argument).compile()
        seconds = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            jax.block_until_ready(ready(argument))
            seconds.append(time.perf_counter() - begin)
        return min(seconds)

    def read(x: jax.Array) -> jax.Array:
        def again(_, total):
            # Of the total before, so that no turn can be left out.
            return jnp.sum(x + (total * 0).astype(x.dtype), dtype=jnp.float32)

        return jax.lax.fori_loop(0, READS, again, jnp.float32(0))

    return READS * size / best(read, long), 2 * side**3 / best(lambda x: x @ x, square)
