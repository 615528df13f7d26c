"""How the GPU kernel's work is cut: channels into parts, rows and keys into tiles, context into splits."""

from dataclasses import dataclass

from pallas_kernels.parts import Part, parts_of

COLUMNS = 32
"""Block keys a step: one word of the mask."""

WIDE = 256
"""From so many value channels on the sums of a tile fill the registers."""

WIDEST = 640
"""Channels of a key, and of its value where that is stored apart, of which tiles fit the shared memory."""

ROOM, HOPPER_ROOM = 65_536, 98_304
"""Bytes of shared memory for keys and values in flight: with the first a program fits wherever the kernel
runs, with the second two do on Hopper.
"""

SHORT = 2
"""Of the shortest splits, what is short enough for a program to be alone on its multiprocessor."""


@dataclass(frozen=True)
class Sizes:
    """What is free to choose, for fewer than 256 value channels but for the splits.

    ``rows``: query rows a program, of bfloat16, fewer as long as there is not a program for each ``sharing``
    multiprocessors. ``keys`` and ``keys_float32``: committed keys a step, fewer where the shared memory is
    too small; ``stages``: steps in flight. ``waves``: programs a multiprocessor, by which the context is
    split where one would leave long splits. ``shortest``: cache slots that a split must be worth. Rows, keys
    and warps are powers of two, rows and keys 16 and more.
    """

    rows: int
    sharing: int
    keys: int
    keys_float32: int
    warps: int
    stages: int
    waves: int
    shortest: int


@dataclass(frozen=True)
class Tiles:
    """Query rows a program, committed keys a step, splits of the context, warps, stages of the pipeline."""

    rows: int
    keys: int
    splits: int
    warps: int
    stages: int


def channel_parts(
    key_width: int, value_width: int, latent: bool
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Parts of the keys and of the values; latent values are the first parts of the keys."""
    values = parts_of(0, value_width)
    if latent:
        return values + parts_of(value_width, key_width - value_width), values
    return parts_of(0, key_width), values


def choose(
    *,
    rows: int,
    programs: int,
    cache: int,
    keys: tuple[Part, ...],
    values: tuple[Part, ...],
    latent: bool,
    itemsize: int,
    hopper: bool,
    processors: int,
    sizes: Sizes,
) -> Tiles:
    """Tiles for ``programs`` independent sets (batch rows x key heads) of ``rows`` query rows.

    ``latent``: values are key channels and cost no memory of their own. The rules follow what the compiled
    kernel takes of registers and shared memory (pallas_kernels/LOG.md).
    """
    value_width = sum(part.padded for part in values)
    width = sum(part.padded for part in keys) + (0 if latent else value_width)
    # The matrix units take no fewer than 16 rows.
    enough = max(16, 1 << (rows - 1).bit_length())
    if value_width >= WIDE:
        # 64 rows are the least that wgmma takes; elsewhere their sums leave no registers, and a third stage
        # no shared memory. 64 keys spill.
        tile = min(64 if hopper else 32, enough)
        step, warps, stages = 32, 4 if tile == 16 else 8, 3 if hopper else 2
    else:
        tile = min(sizes.rows, enough) if itemsize == 2 else 16
        parts, least = max(1, cache // sizes.shortest), processors // sizes.sharing
        while tile > 16 and programs * -(-rows // tile) * parts < least:
            tile //= 2
        step, stages = sizes.keys if itemsize == 2 else sizes.keys_float32, sizes.stages
        # Products of float32 keep their operands in registers.
        warps = max(8, sizes.warps) if itemsize == 4 and value_width > 64 else sizes.warps
        while step > 16 and stages * step * width * itemsize > (HOPPER_ROOM if hopper else ROOM):
            step //= 2
    busy = programs * -(-rows // tile)
    alone = processors // busy
    short = alone * SHORT * sizes.shortest >= cache or value_width >= WIDE
    splits = max(1, min(alone if short else sizes.waves * processors // busy, cache // sizes.shortest))
    return Tiles(tile, step, splits, warps, stages)
