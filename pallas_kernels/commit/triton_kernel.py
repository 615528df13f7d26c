"""One GPU kernel that copies kept slots into all leaves of a cache, in place."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.results import result
from pallas_kernels.triton import iota, load, store

CHANNELS = 4096
"""That a program copies at a time, at most: no more than 32 registers of a thread."""


def write_kernel(slots_ref, count_ref, lengths_ref, *refs, leaves: int) -> None:
    """One slot of one row for one leaf. References: slots [B, A]; count and lengths [B]; what is new of every
    leaf, [B, N, C]; the leaves [B, S, C], which are not read; and the leaves as they become.
    """
    news, written = refs[:leaves], refs[2 * leaves :]
    index, row, order = (pl.program_id(axis) for axis in range(3))
    slot, place = slots_ref[row, order], lengths_ref[row] + order

    def copy(leaf: int) -> None:
        new, (_, space, width) = news[leaf], written[leaf].shape
        size = min(pl.next_power_of_2(width), CHANNELS)

        @pl.when(place < space)
        def _():
            for first in range(0, width, size):
                channel = first + iota(size)
                inside = channel < width
                values = load(new, row, slot, channel, mask=inside)
                store(written[leaf], values, row, place, channel, mask=inside)

    @pl.when(order < count_ref[row])
    def _():
        choose(index, range(leaves), copy)


def choose(index: jax.Array, numbers: range, take: Callable[[int], None]) -> None:
    """``take`` of the one number that equals ``index``, which only the device knows, found by halves."""
    if len(numbers) == 1:
        take(numbers[0])
        return
    middle = len(numbers) // 2
    low, high = numbers[:middle], numbers[middle:]
    lax.cond(
        index < high[0],
        lambda: choose(index, low, take),
        lambda: choose(index, high, take),
    )


def write(
    leaves: Sequence[jax.Array],
    news: Sequence[jax.Array],
    slots: jax.Array,
    count: jax.Array,
    lengths: jax.Array,
    *,
    interpret: bool,
) -> list[jax.Array]:
    """See `pallas_kernels.commit.api.commit`, of the leaves of a tree and no more than a launch takes."""
    B, A = slots.shape

    def flat(array: jax.Array) -> jax.Array:
        return array.reshape(*array.shape[:2], prod(array.shape[2:]))

    taken, into = [flat(new) for new in news], [flat(leaf) for leaf in leaves]
    inputs = (slots, count, lengths, *taken, *into)
    shapes = [result(leaf, leaf.shape, leaf.dtype) for leaf in into]
    whole = [pl.BlockSpec(array.shape, lambda *_, n=array.ndim: (0,) * n) for array in inputs]
    written = pl.pallas_call(
        partial(write_kernel, leaves=len(into)),
        grid=(len(into), B, A),
        in_specs=whole,
        out_specs=whole[-len(into) :],
        out_shape=shapes,
        input_output_aliases={len(inputs) - len(into) + number: number for number in range(len(into))},
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="commit",
    )(*inputs)
    return [array.reshape(leaf.shape) for array, leaf in zip(written, leaves, strict=True)]
