"""Norms and rotary positions of queries and keys in one GPU kernel. Both halves of a head's channels are read
apart, so that no head is cut or joined.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.results import result
from pallas_kernels.rotation import rotated
from pallas_kernels.triton import iota, load, store

HEADS = 4
"""Heads a program, a warp each."""


class Span(NamedTuple):
    """Which heads of an array become a result, and whether rotated."""

    first: int
    turned: bool


def turn_heads(part, span: Span, x_ref, weight_ref, cos_ref, sin_ref, out_ref, *, eps: float) -> None:
    """`HEADS` heads of one token, the ``part``-th such of a result. References: the array's heads [A, D]; the
    norm's weight [D] or None; cos and sin [D/2]; the result [H, D].
    """
    heads, width = out_ref.shape
    half = width // 2
    head, channel = part * HEADS + iota(HEADS)[:, None], iota(pl.next_power_of_2(half))
    inside = channel < half
    held, channels = inside[None] & (head < heads), (channel, channel + half)
    parts = tuple(load(x_ref, span.first + head, each[None], mask=held) for each in channels)
    if weight_ref is not None:
        low, high = (x.astype(jnp.float32) for x in parts)
        mean = jnp.sum(low * low + high * high, axis=1) * (1 / width)
        factor = jax.lax.rsqrt(mean + eps)[:, None]
        parts = tuple(
            load(weight_ref, each, mask=inside)[None] * (x * factor).astype(x_ref.dtype)
            for each, x in zip(channels, (low, high), strict=True)
        )
    if span.turned:
        low, high = (x.astype(jnp.float32) for x in parts)
        cos, sin = (load(ref, channel, mask=inside)[None] for ref in (cos_ref, sin_ref))
        parts = rotated(low, high, cos, sin)
    for each, x in zip(channels, parts, strict=True):
        store(out_ref, x, head, each[None], mask=held)


def rotary_kernel(x_refs, weight_refs, cos_ref, sin_ref, *out_refs, spans: tuple[Span, ...], eps) -> None:
    """One token; of the results' heads, result after result, those that the second program index says."""
    part = pl.program_id(1)
    for span, x_ref, weight_ref, out_ref in zip(spans, x_refs, weight_refs, out_refs, strict=True):
        parts = pl.cdiv(out_ref.shape[0], HEADS)
        turned = partial(turn_heads, part, span, x_ref, weight_ref, cos_ref, sin_ref, out_ref, eps=eps)
        pl.when((part >= 0) & (part < parts))(turned)
        part = part - parts


def turn(
    heads: tuple[jax.Array, ...],
    values: jax.Array,
    weights: tuple[jax.Array | None, ...],
    cos: jax.Array,
    sin: jax.Array,
    *,
    eps: float,
    interpret: bool,
) -> tuple[jax.Array, ...]:
    """See `pallas_kernels.rotary.api.rotate`, for arrays of one dtype; with ``interpret`` anywhere."""
    B, N, _, D = values.shape
    T = B * N
    if T == 1:
        # XLA sums a single token's queries apart from keys and values.
        before, counts = heads, [x.shape[2] for x in heads]
        spans = [Span(0, turned=True)] * len(heads)
        sources = tuple(x.reshape(T, -1, D) for x in heads)
    else:
        # Of several tokens there is one product, and a kernel for each part. Joined, as they were cut, they
        # are whole again.
        before, weights = (*heads, values), (*weights, None)
        counts = [x.shape[2] for x in before]
        spans = [Span(sum(counts[:i]), turned=i < len(heads)) for i in range(len(before))]
        whole = jnp.concatenate([x.reshape(T, -1) for x in before], axis=1).reshape(T, -1, D)
        sources = (whole,) * len(before)

    def of_token(count: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, count, D), lambda t, p: (t, 0, 0))

    angles = pl.BlockSpec((None, D // 2), lambda t, p: (t, 0))
    results = pl.pallas_call(
        partial(rotary_kernel, spans=tuple(spans), eps=eps),
        grid=(T, sum(pl.cdiv(count, HEADS) for count in counts)),
        in_specs=(
            tuple(of_token(source.shape[1]) for source in sources),
            tuple(None if weight is None else pl.BlockSpec((D,), lambda t, p: (0,)) for weight in weights),
            angles,
            angles,
        ),
        out_specs=tuple(map(of_token, counts)),
        out_shape=tuple(
            result(source, (T, count, D), source.dtype) for count, source in zip(counts, sources, strict=True)
        ),
        compiler_params=plgpu.CompilerParams(num_warps=HEADS, num_stages=1),
        interpret=interpret,
        name="rotary",
    )(sources, weights, cos.reshape(T, -1), sin.reshape(T, -1))
    found = tuple(each.reshape(x.shape) for each, x in zip(results, before, strict=True))
    return found if len(found) > len(heads) else (*found, values)
