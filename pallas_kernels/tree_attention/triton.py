"""The fused GPU kernel (`triton_kernel`): what it takes, and how its work is cut on this device."""

import jax
import jax.numpy as jnp

from pallas_kernels import device, tuning
from pallas_kernels.tree_attention.tiles import WIDE, WIDEST, Sizes, channel_parts, choose


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
    interpret: bool = False,
) -> jax.Array:
    """See `pallas_kernels.tree_attention.api.tree_attention`. ``sizes``: the device's own (`tuning`) if None;
    with ``interpret`` anywhere.

    Raises NotImplementedError off an NVIDIA GPU of compute capability 8.0 and up, for mixed dtypes and others
    than bfloat16 and float32, for float32 values of 256 channels and more, and for wider keys and values than
    the registers and the shared memory hold.
    """
    capability = None if interpret else device.require_triton()
    device.require_one_dtype(q, prefix_k, prefix_v, block_k, block_v)
    B, N, H, key_width = q.shape
    S, J = prefix_k.shape[1:3]
    width = (value_width or key_width) if prefix_v is None else prefix_v.shape[-1]
    if width > 2 * WIDE or (width >= WIDE and q.dtype == jnp.float32):
        raise NotImplementedError(f"{width} value channels in {q.dtype} do not fit the registers")
    if key_width + (0 if prefix_v is None else width) > WIDEST:
        raise NotImplementedError(f"{key_width} key and {width} value channels do not fit the shared memory")
    keys, values = channel_parts(key_width, width, prefix_v is None)
    tiles = choose(
        rows=N * (H // J),
        programs=B * J,
        cache=S,
        keys=keys,
        values=values,
        latent=prefix_v is None,
        itemsize=q.dtype.itemsize,
        hopper=capability == "9.0",
        processors=device.processors(128),
        sizes=sizes or tuning.sizes("tree_attention", "triton", Sizes),
    )
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.tree_attention.triton_kernel import attend

    return attend(
        *(q, prefix_k, prefix_v, block_k, block_v, lengths, mask),
        scale=scale,
        lower=lower,
        value_width=width,
        tiles=tiles,
        interpret=interpret,
    )
