"""Token rows times INT4 weights as published, in one GPU kernel: Pallas through Triton, for compute
capability 8.0 and up.

A program takes a block of rows and a strip of output features and walks the words of its inputs. A nibble
of all words at a time is unpacked into bfloat16 and multiplied by the inputs that it belongs to, which come
in the order `as_published.by_nibble`: nothing is reordered in registers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.grouped_matmul.as_published import activated, weight_of
from pallas_kernels.grouped_matmul.triton import Sizes
from pallas_kernels.results import result
from pallas_kernels.triton import iota, load, product

WORDS_A_GROUP = 4

ROOM = 96 << 10
"""Bytes of shared memory for steps in flight: what every such GPU has."""


@dataclass(frozen=True)
class Tiles:
    """``strip``: output features a program, ``words``: a step's words of each, both powers of two of 16 and
    more. ``warps`` a program, ``stages``: steps in flight.
    """

    strip: int
    words: int
    warps: int
    stages: int


def multiply_kernel(experts_ref, x_ref, *refs, rounding: str, tiles: Tiles) -> None:
    """One block of rows, one strip of its expert.

    References: the block's expert; x [R, inputs]; of one or two weights all experts' packed [E, strip, words]
    and scale [E, strip, groups]; out [R, strip].
    """
    *weights, out_ref = refs
    expert = experts_ref[...]
    rows, words = x_ref.shape[0], x_ref.shape[1] // 8
    feature = iota(tiles.strip)

    def step(turn, sums):
        word = turn * tiles.words + iota(tiles.words)
        held = jnp.broadcast_to((word < words)[None], (tiles.strip, tiles.words))
        where = jnp.broadcast_to(expert, ()), feature[:, None]
        group = lax.div(word, jnp.int32(WORDS_A_GROUP))
        packed = [load(ref, *where, word[None], mask=held) for ref in weights[::2]]
        scales = [load(ref, *where, group[None], mask=held).astype(jnp.float32) for ref in weights[1::2]]
        for nibble in range(8):
            inputs = (nibble * words + word)[None]
            x = load(x_ref, iota(rows)[:, None], inputs, mask=(word < words)[None])
            codes = [lax.shift_right_logical(each, jnp.int32(4 * nibble)) & 15 for each in packed]
            sums = tuple(
                total + product(x, weight_of(code - 8, scale, rounding, x_ref.dtype), True)
                for total, code, scale in zip(sums, codes, scales, strict=True)
            )
        return sums

    @pl.when(expert >= 0)
    def _():
        sums = tuple(jnp.zeros((rows, tiles.strip), jnp.float32) for _ in weights[::2])
        sums = lax.fori_loop(0, pl.cdiv(words, tiles.words), step, sums)
        out_ref[...] = activated(sums).astype(out_ref.dtype)


def choose(rows: int, blocks: int, out: int, weights: int, sizes: Sizes) -> Tiles:
    """The widest strip, of at most ``sizes.strip`` output features, that divides ``out`` and makes
    ``sizes.programs`` programs of ``blocks`` blocks, or the narrowest; of ``sizes`` as many steps in flight,
    then as many words, as `ROOM` holds, of ``weights`` weights. Raises NotImplementedError where no strip
    divides.
    """
    strips = [strip for strip in (128, 64, 32, 16) if strip <= sizes.strip and out % strip == 0]
    if not strips:
        raise NotImplementedError(f"{out} outputs are no multiple of 16")
    strip = next((strip for strip in strips if out // strip * blocks >= sizes.programs), strips[-1])

    def fits(words: int, stages: int) -> bool:
        # Inputs of eight nibbles in bfloat16; words, and a scale for each.
        return stages * words * (16 * rows + 6 * strip * weights) <= ROOM

    words, stages = sizes.words, sizes.stages
    while stages > 2 and not fits(words, stages):
        stages -= 1
    while words > 16 and not fits(words, stages):
        words //= 2
    return Tiles(strip, words, sizes.warps if rows < 64 else sizes.warps_of_many, stages)


def multiply(
    x: jax.Array,
    experts: jax.Array,
    weights: Sequence,
    *,
    rounding: str,
    sizes: Sizes,
    interpret: bool = False,
) -> jax.Array:
    """Every block of rows times its expert's weight; with two, silu of the one product times the other.

    Args:
      x: [P, R, inputs] in the order `as_published.by_nibble`; R a power of two, 16 or more.
      experts: [P] int32, -1 for blocks that nobody reads.
      weights: one or two of (packed int32 [E, out, inputs / 8], scale bfloat16 [E, out, inputs / 32]).
      rounding: see `api.expert_mlp`.
      sizes: what the work is cut by.

    Returns:
      [P, R, out] in x's dtype, anything where an expert is -1. Raises NotImplementedError where ``out`` is no
      multiple of 16.
    """
    P, R, inputs = x.shape
    count, out, _ = weights[0][0].shape
    tiles = choose(R, P, out, len(weights), sizes)

    def of_weight(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((count, tiles.strip, width), lambda s, p: (0, s, 0))

    return pl.pallas_call(
        partial(multiply_kernel, rounding=rounding, tiles=tiles),
        grid=(out // tiles.strip, P),
        in_specs=[
            pl.BlockSpec((None,), lambda s, p: (p,)),
            pl.BlockSpec((None, R, inputs), lambda s, p: (p, 0, 0)),
            *(of_weight(array.shape[2]) for pair in weights for array in pair),
        ],
        out_specs=pl.BlockSpec((None, R, tiles.strip), lambda s, p: (p, 0, s)),
        out_shape=result(x, (P, R, out), x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpret,
        name="int4_experts",
    )(experts, x, *(array for pair in weights for array in pair))
