"""Norms and rotation of latents in one GPU kernel."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.results import result
from pallas_kernels.rotation import rotated
from pallas_kernels.triton import iota, load, store


def latent_kernel(
    q_ref, kv_ref, q_weight_ref, kv_weight_ref, cos_ref, sin_ref, queries_ref, latent_ref, *, starts, eps
) -> None:
    """One token, its queries or its latent. References: what holds them from ``starts`` on; weights [Q] and
    [R]; cos and sin [P/2]; the normalised queries [Q]; the latent [R + P].
    """

    def normalise(x_ref, start: int, weight_ref, out_ref) -> None:
        width = weight_ref.shape[0]
        channel = iota(pl.next_power_of_2(width))
        inside = channel < width
        x = load(x_ref, start + channel, mask=inside).astype(jnp.float32)
        factor = jax.lax.rsqrt(jnp.sum(x * x) * (1 / width) + eps)
        weight = load(weight_ref, channel, mask=inside)
        store(out_ref, weight * (x * factor).astype(out_ref.dtype), channel, mask=inside)

    q_start, kv_start = starts

    @pl.when(pl.program_id(1) == 0)
    def _():
        normalise(q_ref, q_start, q_weight_ref, queries_ref)

    @pl.when(pl.program_id(1) == 1)
    def _():
        normalise(kv_ref, kv_start, kv_weight_ref, latent_ref)
        rank, half = kv_weight_ref.shape[0], cos_ref.shape[0]
        pair = iota(pl.next_power_of_2(half))
        inside = pair < half
        even, odd = (
            load(kv_ref, kv_start + rank + 2 * pair + e, mask=inside).astype(jnp.float32) for e in range(2)
        )
        cos, sin = (load(ref, pair, mask=inside) for ref in (cos_ref, sin_ref))
        for start, x in zip((rank, rank + half), rotated(even, odd, cos, sin), strict=True):
            store(latent_ref, x, start + pair, mask=inside)


def finish(
    q: jax.Array,
    kv: jax.Array,
    q_weight: jax.Array,
    kv_weight: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    eps: float,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.latent.api.prepare`, for arrays of one dtype; with ``interpret`` anywhere."""
    (B, N, Q), width = q.shape, kv.shape[2]
    T, starts = B * N, (0, 0)
    sources = q, kv
    if T > 1:
        # As in `pallas_kernels.rotary`: XLA makes one product of both, and joined they are whole again.
        sources, starts = (jnp.concatenate([q, kv], axis=-1),) * 2, (0, Q)

    def of_token(size: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, size), lambda t, p: (t, 0))

    angles = of_token(cos.shape[2])
    queries, latents = pl.pallas_call(
        partial(latent_kernel, starts=starts, eps=eps),
        grid=(T, 2),
        in_specs=(
            *(of_token(source.shape[2]) for source in sources),
            *(pl.BlockSpec(weight.shape, lambda t, p: (0,)) for weight in (q_weight, kv_weight)),
            angles,
            angles,
        ),
        out_specs=(of_token(Q), of_token(width)),
        out_shape=tuple(result(q, (T, size), q.dtype) for size in (Q, width)),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="latent",
    )(*(x.reshape(T, -1) for x in sources), q_weight, kv_weight, cos.reshape(T, -1), sin.reshape(T, -1))
    return queries.reshape(q.shape), latents.reshape(kv.shape)
