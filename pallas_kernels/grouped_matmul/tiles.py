"""INT4 experts in the order in which a GPU's threads read them (repacked once, at load).

The published rows are cut into tiles of 64 output features by 128 or 64 inputs. A tile's bytes lie together,
in the order of the registers that Hopper's tensor cores (wgmma) take, its scales behind them: a tile is one
copy, and unpacking it moves nothing between threads.

Thread t = 32 w + 4 a + c of the 128 that share a tile holds the rows 16 w + a + 8 h (h = 0, 1) and of these
the columns 8 j + 2 c + e (e = 0, 1). Word (h, t, m) holds j = 4 m + i as the nibbles i + 4 e, in the
published code q + 8. Scale (w, a, h, m) belongs to row 16 w + a + 8 h and the m-th 32 columns. Words and
scales of a tile of W inputs are nine times W int32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

ROWS = 64
GROUP = 32
LINES = 9
"""A tile is so many lines of as many int32 as it has inputs: eight of weights, one of scales."""


class ExpertTiles(NamedTuple):
    """Experts as tiles, int32 [E, strips, steps, 9 parts, W].

    A strip of ``gate_up`` is 64 rows of gate (part 0) and the same rows of up (part 1), one of ``down`` 64
    rows, or two parts of 64 where the rows allow it. A step is W = 128 or 64 inputs.
    """

    gate_up: jax.Array
    down: jax.Array


def step_width(inputs: int) -> int:
    """Inputs a tile. Raises NotImplementedError where no tile divides them."""
    for width in (128, 64):
        if inputs % width == 0:
            return width
    raise NotImplementedError(f"{inputs} inputs are no multiple of 64")


def pack(gate, up, down) -> ExpertTiles:
    """Tiles of published INT4 experts, (packed int32 [E, out, in/8], scale bfloat16 [E, out, in/32]) each.

    Raises NotImplementedError for shapes that tiles do not divide.
    """
    both = jnp.concatenate([tiles_of(gate), tiles_of(up)], axis=3)
    rows = tiles_of(down)
    e, strips, steps, lines, width = rows.shape
    if strips % 2 == 0:
        rows = rows.reshape(e, strips // 2, 2, steps, lines, width).swapaxes(2, 3)
        rows = rows.reshape(e, strips // 2, steps, 2 * lines, width)
    return ExpertTiles(both, rows)


def tiles_of(weight) -> jax.Array:
    """One projection as int32 [E, strips of 64 rows, steps, 9, W]."""
    packed, scale = weight
    e, out, words = packed.shape
    if out % ROWS:
        raise NotImplementedError(f"{out} output features are no multiple of {ROWS}")
    width = step_width(8 * words)
    groups = width // GROUP
    strips, steps = out // ROWS, words // (4 * groups)
    # Axes: E, strips, w, h, a, steps, m, i, and the word's own 8 nibbles as (c, e).
    source = packed.reshape(e, strips, 4, 2, 8, steps, groups, 4, 1, 1)
    shifts = (8 * jnp.arange(4)[:, None] + 4 * jnp.arange(2)).astype(jnp.int32)
    nibbles = (source >> shifts) & 15
    places = (4 * jnp.arange(4)[:, None, None] + 16 * jnp.arange(2)).astype(jnp.int32)
    values = jnp.sum(nibbles << places, axis=(7, 9), dtype=jnp.int32)
    # E, strips, w, h, a, steps, m, c -> E, strips, steps, h, w, a, c, m
    values = values.transpose(0, 1, 5, 3, 2, 4, 7, 6).reshape(e, strips, steps, -1)
    scales = scale.reshape(e, strips, 4, 2, 8, steps, groups // 2, 2).transpose(0, 1, 5, 2, 4, 3, 6, 7)
    scales = jax.lax.bitcast_convert_type(scales, jnp.int32).reshape(e, strips, steps, -1)
    return jnp.concatenate([values, scales], axis=-1).reshape(e, strips, steps, LINES, width)


def unpack(tiles: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One projection, int32 [E, strips, steps, 9, W], in the published form: `tiles_of` undone."""
    e, strips, steps, _, width = tiles.shape
    groups = width // GROUP
    values = tiles[..., :-1, :].reshape(e, strips, steps, 2, 4, 8, 4, groups, 1, 1)
    places = (4 * jnp.arange(4)[:, None] + 16 * jnp.arange(2)).astype(jnp.int32)
    nibbles = (values >> places) & 15
    # E, strips, steps, h, w, a, c, m, i, e -> E, strips, w, h, a, steps, m, i, c, e
    nibbles = nibbles.transpose(0, 1, 4, 3, 5, 2, 7, 8, 6, 9)
    shifts = (8 * jnp.arange(4)[:, None] + 4 * jnp.arange(2)).astype(jnp.int32)
    packed = jnp.sum(nibbles << shifts, axis=(-2, -1), dtype=jnp.int32).reshape(e, strips * ROWS, -1)
    scales = tiles[..., -1, :].reshape(e, strips, steps, 4, 8, 2, groups // 2)
    scales = jax.lax.bitcast_convert_type(scales, jnp.bfloat16)
    scales = scales.transpose(0, 1, 3, 5, 4, 2, 6, 7).reshape(e, strips * ROWS, -1)
    return packed, scales


def published(tiles: ExpertTiles) -> list[tuple[jax.Array, jax.Array]]:
    """Gate, up and down as `pack` was given them."""
    gate, up = jnp.split(tiles.gate_up, 2, axis=3)
    e, strips, steps, lines, width = tiles.down.shape
    parts = lines // LINES
    down = tiles.down.reshape(e, strips, steps, parts, LINES, width).swapaxes(2, 3)
    return [unpack(each) for each in (gate, up, down.reshape(e, strips * parts, steps, LINES, width))]
