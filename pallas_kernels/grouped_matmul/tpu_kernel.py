"""Token rows times INT4 weights on a TPU (Mosaic): a block of rows and a strip of output features a step.

Expert ids are prefetched scalars that say which expert's strip is copied next. The blocks of a strip follow
each other in the order of their experts, so that an expert's strip is copied once. Words are unpacked by
shifts: a nibble of all words at a time, so that inputs come in the order `as_published.by_nibble`. Four words
share a scale, which a product with ones and zeros puts beside each of them.

XLA keeps the inputs of published weights innermost where their words fill registers of 128 lanes, otherwise
the outputs. Each is taken as it lies: another order would cost a copy of all experts a call.
"""

from collections.abc import Sequence
from functools import partial, reduce
from operator import add

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.grouped_matmul.as_published import activated, weight_of
from pallas_kernels.results import result

LANES = 128


def multiply_kernel(experts_ref, sources_ref, x_ref, spread_ref, *refs, rounding: str, turned) -> None:
    """One block of rows, one strip of one expert.

    References: the blocks' experts and whose weights were copied, [P]; x [R, inputs]; ``spread`` [groups,
    words], one where the word is in the group; of one or two weights a packed [strip, words] and a scale
    [strip, groups], with their axes exchanged where ``turned`` (packed, scale) says so; out [R, strip].
    """
    *weights, out_ref = refs

    @pl.when(experts_ref[pl.program_id(1)] >= 0)
    def _():
        pairs = zip(weights[::2], weights[1::2], strict=True)
        sums = [product(x_ref, *pair, spread_ref, rounding, turned) for pair in pairs]
        out_ref[...] = activated(sums).astype(out_ref.dtype)


def product(x_ref, packed_ref, scale_ref, spread_ref, rounding: str, turned) -> jax.Array:
    """x times the unpacked weight, [R, strip] float32."""
    spread, scale = spread_ref[...], scale_ref[...]
    groups = 0 if turned[1] else 1
    scales = dot(spread, scale, groups, 0) if turned[0] else dot(scale, spread, 0, groups)
    # The published code is q + 8: with the upper bits flipped the nibbles are in two's complement.
    words = packed_ref[...] ^ np.uint32(0x88888888).astype(np.int32)
    count = spread.shape[1]

    def part(j: int) -> jax.Array:
        q = lax.shift_right_arithmetic(words << (28 - 4 * j), 28)
        weight = weight_of(q, scales, rounding, x_ref.dtype)
        return dot(x_ref[:, j * count : (j + 1) * count], weight, 0 if turned[0] else 1)

    return reduce(add, map(part, range(8)))


def dot(a: jax.Array, b: jax.Array, b_axis: int, a_axis: int = 1) -> jax.Array:
    """An axis of ``a`` with one of ``b``, summed in float32; float32 is not rounded."""
    return lax.dot_general(
        *(a, b, (((a_axis,), (b_axis,)), ((), ()))),
        precision=lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


def strip_of(out: int, words: int, most: int) -> int:
    """Output features a strip: as many registers of them as divide them and are ``most`` bytes, or all."""
    fitting = [n for n in range(LANES, out + 1, LANES) if out % n == 0 and n * words * 4 <= most]
    return max(fitting, default=LANES if out % LANES == 0 else out)


def multiply(
    x: jax.Array,
    experts: jax.Array,
    weights: Sequence,
    *,
    rounding: str,
    limit: int,
    strip_bytes: int,
    interpret: bool | pltpu.InterpretParams = False,
) -> jax.Array:
    """Every block of rows times its expert's weight; with two, silu of the one product times the other.

    Args:
      x: [P, R, inputs] in the order `as_published.by_nibble`.
      experts: [P] int32, ascending, then -1 for blocks that nobody reads.
      weights: one or two of (packed int32 [E, out, inputs / 8], scale bfloat16 [E, out, inputs / 32]).
      rounding: see `api.expert_mlp`.
      limit: VMEM bytes that the kernel may take.
      strip_bytes: packed bytes of a strip at most.

    Returns:
      [P, R, out] in x's dtype, anything where an expert is -1.
    """
    P, R, inputs = x.shape
    out, words = weights[0][0].shape[1:]
    groups = weights[0][1].shape[2]
    strip = strip_of(out, words, strip_bytes)
    turned = tuple(size % LANES != 0 for size in (words, groups))

    def of_weight(size: int, turn: bool) -> pl.BlockSpec:
        def place(s, p, experts, sources):
            return (sources[p], 0, s) if turn else (sources[p], s, 0)

        return pl.BlockSpec((None, size, strip) if turn else (None, strip, size), place)

    arrays, specs = [], []
    for pair in weights:
        for array, size, turn in zip(pair, (words, groups), turned, strict=True):
            arrays.append(array.swapaxes(1, 2) if turn else array)
            specs.append(of_weight(size, turn))
    spread = jnp.arange(words)[None] * groups // words == jnp.arange(groups)[:, None]
    return pl.pallas_call(
        partial(multiply_kernel, rounding=rounding, turned=turned),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(out // strip, P),
            in_specs=[
                pl.BlockSpec((None, R, inputs), lambda s, p, experts, sources: (p, 0, 0)),
                pl.BlockSpec((groups, words), lambda s, p, experts, sources: (0, 0)),
                *specs,
            ],
            out_specs=pl.BlockSpec((None, R, strip), lambda s, p, experts, sources: (p, 0, s)),
        ),
        out_shape=result(x, (P, R, out), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=limit
        ),
        interpret=interpret,
        name="grouped_matmul",
    )(
        experts,
        # A block that nobody reads copies nothing: the last expert's strip is there.
        jnp.where(experts >= 0, experts, jnp.maximum(jnp.max(experts), 0)),
        x,
        spread.astype(jnp.bfloat16),
        *arrays,
    )
