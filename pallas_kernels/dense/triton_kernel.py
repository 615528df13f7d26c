"""Products of few tokens with dense weights: Pallas through Triton.

Weights are the left operand of the matrix units and tokens the right one, so that a tile of weights has few
features and many programs share out the reading. What a program reads of a weight are rows of inputs, in
order. Tokens are cut into parts that are powers of two (65 = 64 + 1, which is padded to 16).
"""

from functools import partial
from itertools import accumulate

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.dense.triton import Tiles
from pallas_kernels.parts import Part, parts_of
from pallas_kernels.results import result
from pallas_kernels.triton import iota, load, product, store

Sums = tuple[tuple[jax.Array, ...], ...]
"""[features, tokens], for every part of the tokens and every weight."""


def rows_of(ref, feature: jax.Array, place: jax.Array) -> jax.Array:
    """[features, inputs] of a reference [O, K]; no index reaches past the end."""
    shape = (*feature.shape, *place.shape)
    return plgpu.load(ref.at[jnp.broadcast_to(feature[:, None], shape), jnp.broadcast_to(place[None], shape)])


def sums_of(x_ref, weight_refs, tile, split, *, tiles: Tiles, tokens: tuple[Part, ...]) -> Sums:
    """The products of one tile of each weight with all tokens, over one split of the inputs. References: x
    [T, K], weights [O, K].
    """
    count, inputs = x_ref.shape
    feature = tile * tiles.features + iota(tiles.features)
    steps = inputs // tiles.splits // tiles.inputs

    def step(index, sums: Sums) -> Sums:
        place = (split * steps + index) * tiles.inputs + iota(tiles.inputs)
        weights = [rows_of(ref, feature, place) for ref in weight_refs]

        def more(part: Part, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            token = part.start + iota(part.padded)
            x = load(x_ref, token[:, None], place[None], mask=(token < count)[:, None])
            return tuple(old + product(weight, x, True) for old, weight in zip(so_far, weights, strict=True))

        return tuple(map(more, tokens, sums))

    nothing = [
        [jnp.zeros((tiles.features, part.padded), jnp.float32) for _ in weight_refs] for part in tokens
    ]
    return lax.fori_loop(0, steps, step, tuple(map(tuple, nothing)))


def write(out_ref, values: jax.Array, feature, part: Part) -> None:
    """Store [features, tokens] into a reference [T, O], from ``feature`` on."""
    token = part.start + iota(part.padded)
    features = feature + iota(values.shape[0])
    store(out_ref, values, token[None], features[:, None], mask=(token < out_ref.shape[0])[None])


def product_kernel(x_ref, weight_refs, out_refs, *, tiles: Tiles, tokens: tuple[Part, ...]) -> None:
    """One tile of one weight, all weights' tiles counted through, and one split of the inputs.

    ``out_refs``: [T, O] a weight, or one for all, side by side.
    """
    tile, split, before = pl.program_id(0), pl.program_id(1), 0
    for weight_ref, out_ref in zip(weight_refs, out_refs * (len(weight_refs) // len(out_refs)), strict=True):
        features = weight_ref.shape[0]

        def run(tile=tile, before=before, weight_ref=weight_ref, out_ref=out_ref) -> None:
            sums = sums_of(x_ref, (weight_ref,), tile, split, tiles=tiles, tokens=tokens)
            for part, (values,) in zip(tokens, sums, strict=True):
                write(out_ref, values, before + tile * tiles.features, part)

        if len(weight_refs) == 1:
            run()
        else:
            pl.when((tile >= 0) & (tile < features // tiles.features))(run)
        tile = tile - features // tiles.features
        before += features if len(out_refs) == 1 else 0


def gated_kernel(x_ref, gate_ref, up_ref, out_ref, *, tiles: Tiles, tokens: tuple[Part, ...]) -> None:
    """One tile of gate and the same one of up."""
    tile = pl.program_id(0)
    sums = sums_of(x_ref, (gate_ref, up_ref), tile, 0, tiles=tiles, tokens=tokens)
    for part, pair in zip(tokens, sums, strict=True):
        gate, up = (values.astype(out_ref.dtype) for values in pair)
        gate = jax.nn.silu(gate.astype(jnp.float32)).astype(gate.dtype)
        write(out_ref, gate * up, tile * tiles.features, part)


def multiply(
    x: jax.Array, weights: tuple[jax.Array, ...], tiles: Tiles, *, interpret: bool
) -> tuple[jax.Array, ...]:
    """See `pallas_kernels.dense.api.products`; ``tiles`` divide every weight."""
    features = [weight.shape[0] for weight in weights]
    if len(x) == 1 and tiles.splits == 1:
        return _launch(x, weights, features, x.dtype, tiles, interpret)
    # Side by side: their parts are summed by one kernel of XLA's, and who reads them all reads one array.
    (joined,) = _launch(
        x, weights, [sum(features)], jnp.float32 if tiles.splits > 1 else x.dtype, tiles, interpret
    )
    if tiles.splits > 1:
        joined = jnp.sum(joined, axis=0).astype(x.dtype)
    return tuple(jnp.split(joined, list(accumulate(features))[:-1], axis=1))


def parts(x: jax.Array, weight: jax.Array, tiles: Tiles, *, interpret: bool) -> jax.Array:
    """[splits, T, O] float32, whose sum over the splits is x W^T."""
    (found,) = _launch(x, (weight,), [weight.shape[0]], jnp.float32, tiles, interpret)
    return found.reshape(tiles.splits, len(x), -1)


def gated(x: jax.Array, gate_up: jax.Array, tiles: Tiles, *, interpret: bool) -> jax.Array:
    """See `pallas_kernels.dense.api.swiglu`; tiles divide F, and inputs are not split."""
    (T, K), F = x.shape, gate_up.shape[1]

    def half(index: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, F, K), lambda f: (index, 0, 0))

    return pl.pallas_call(
        partial(gated_kernel, tiles=tiles, tokens=parts_of(0, T)),
        grid=(F // tiles.features,),
        in_specs=(pl.BlockSpec((T, K), lambda f: (0, 0)), half(0), half(1)),
        out_specs=pl.BlockSpec((T, F), lambda f: (0, 0)),
        out_shape=result(x, (T, F), x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpret,
        name="dense_swiglu",
    )(x, gate_up, gate_up)


def _launch(
    x: jax.Array, weights: tuple[jax.Array, ...], widths: list[int], dtype, tiles: Tiles, interpret: bool
) -> tuple[jax.Array, ...]:
    """[T, width] for every one of ``widths``, [splits, T, width] where the inputs are split."""
    T, split = len(x), tiles.splits > 1
    lead = (tiles.splits,) if split else ()
    tokens = parts_of(0, T)

    def whole(array: jax.Array) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda f, s: (0, 0))

    return pl.pallas_call(
        partial(product_kernel, tiles=tiles, tokens=tokens),
        grid=(sum(len(weight) for weight in weights) // tiles.features, tiles.splits),
        in_specs=(whole(x), tuple(map(whole, weights))),
        out_specs=(
            tuple(
                pl.BlockSpec((None, T, width), lambda f, s: (s, 0, 0))
                if split
                else pl.BlockSpec((T, width), lambda f, s: (0, 0))
                for width in widths
            ),
        ),
        out_shape=(tuple(result(x, (*lead, T, width), dtype) for width in widths),),
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpret,
        name="dense_products",
    )(x, tuple(weights))[0]
