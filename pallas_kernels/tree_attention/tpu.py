"""The TPU kernel (`tpu_kernel`): what it takes, and how its work is cut for this device's VMEM."""

from dataclasses import dataclass

import jax

from pallas_kernels import device, tuning


@dataclass(frozen=True)
class Sizes:
    """Of a grid step: about ``tile_bytes`` of committed keys and values (a step that copies nothing costs
    time too), ``keys`` of them at most and, where there are so many, ``fewest_keys``; ``rows`` query rows of
    a key head at most (from half of 1152 on, reading the keys takes less time). Keys are powers of two, rows
    a multiple of 16.
    """

    tile_bytes: int
    keys: int
    fewest_keys: int
    rows: int


def tree_attention(
    q: jax.Array,
    prefix_k: jax.Array,
    prefix_v: jax.Array | None,
    block_k: jax.Array,
    block_v: jax.Array | None,
    lengths: jax.Array,
    mask: jax.Array,
    *,
    scale: float,
    lower: jax.Array | None,
    value_width: int | None,
    sizes: Sizes | None = None,
) -> jax.Array:
    """See `pallas_kernels.tree_attention.api.tree_attention`. ``sizes``: the device's own (`tuning`) if None.

    Raises NotImplementedError where the program is not for a TPU, for windows, for mixed dtypes and others
    than bfloat16 and float32, and for more heads and channels than VMEM holds.
    """
    if not device.is_tpu():
        raise NotImplementedError("a kernel for TPUs")
    if lower is not None:
        raise NotImplementedError("takes no windows")
    device.require_one_dtype(q, prefix_k, prefix_v, block_k, block_v)
    # Imported late: it takes a while, and elsewhere nothing needs it.
    from jax.experimental.pallas import tpu as pltpu

    from pallas_kernels.tree_attention.tpu_kernel import Tiles, attend

    N, H, key_width = q.shape[1:]
    S, J = prefix_k.shape[1:3]
    width = (value_width or key_width) if prefix_v is None else prefix_v.shape[-1]
    chip = pltpu.get_tpu_info()
    rows, keys = choose(
        rows=N * (H // J),
        cache=S,
        heads=J,
        key_width=key_width,
        value_width=width,
        latent=prefix_v is None,
        itemsize=q.dtype.itemsize,
        room=chip.vmem_capacity_bytes // 2,
        sizes=sizes or tuning.sizes("tree_attention", "mosaic_tpu", Sizes),
    )
    programs = q.shape[0] * -(-N * (H // J) // rows)
    splits = chip.num_cores if programs < chip.num_cores and keys < S else 1
    return attend(
        *(q, prefix_k, prefix_v, block_k, block_v, lengths, mask),
        scale=scale,
        value_width=width,
        tiles=Tiles(rows, keys, splits, chip.vmem_capacity_bytes * 3 // 4),
    )


def choose(
    *,
    rows: int,
    cache: int,
    heads: int,
    key_width: int,
    value_width: int,
    latent: bool,
    itemsize: int,
    room: int,
    sizes: Sizes,
) -> tuple[int, int]:
    """Query rows of a key head and committed keys a grid step that take ``room`` bytes of VMEM at most, and
    all rows where there are few, since every tile of rows reads the whole cache.

    Raises NotImplementedError where even few do not fit.
    """
    key_lanes, value_lanes = (-(-width // 128) * 128 for width in (key_width, value_width))
    # Two buffers of what is copied while the step before it runs; float32 sums, peaks and totals once.
    a_key = 2 * heads * itemsize * (key_lanes + (0 if latent else value_lanes))
    a_row = heads * (2 * itemsize * key_lanes + (2 * 4 + 4) * value_lanes + 4 * 4 * 128)
    # Scores, weights and the product of one head at a time.
    scratch = 2 * 4 * 128 + 4 * value_lanes
    keys = sizes.keys
    while keys > sizes.fewest_keys and keys * a_key > 2 * sizes.tile_bytes:
        keys //= 2
    keys = min(keys, cache)
    most = (room - (keys + 128) * a_key) // (a_row + scratch + keys * (2 * 4 + itemsize))
    most = min(most, sizes.rows) // 16 * 16
    if most < min(rows, 32):
        raise NotImplementedError(f"{heads} heads of {key_width} and {value_width} channels do not fit VMEM")
    return min(rows, most), keys
