"""Products of few tokens with dense weights on Hopper's tensor cores.

Weights are the left operand of wgmma, 64 output features of a product, and tokens its columns, of which there
may be as few as 8. Both stream through shared memory, several steps in flight. By their sizes all programs of
a launch are resident at once, some two on a multiprocessor. A copy past the last token brings zeros.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dense.mosaic import COLUMNS, ROWS, Cut
from pallas_kernels.dense.prologue import normalise
from pallas_kernels.dense.unnormed import Unnormed
from pallas_kernels.mosaic import put, token_rows
from pallas_kernels.results import result


@functools.partial(jax.jit, static_argnames=("cut", "dtype", "joined", "gated", "interpret"))
def multiply(
    x: jax.Array | Unnormed,
    weights: tuple[jax.Array, ...],
    cut: Cut,
    *,
    dtype: jnp.dtype,
    joined: bool = True,
    gated: bool = False,
    interpret: bool = False,
) -> tuple[jax.Array, ...]:
    """x W^T for every W, in parts whose sum over the splits it is.

    Args:
      x: bfloat16 [T, K]; T is a multiple of 8, or below. Of an `Unnormed` every program works out the norm.
      weights: bfloat16 [O, K] each, O a multiple of 64; with ``gated`` a single one, [2, F, K].
      cut: how; it divides K.
      dtype: of the results.
      joined: one result for all weights, side by side, and not one for each.
      gated: silu(gate x) * up x instead, both rounded to bfloat16 before, from a single split.
      interpret: run in JAX's simulator of a GPU, anywhere.

    Returns:
      [splits, T, features] a result.
    """
    T, K = x.shape
    columns = -(-T // COLUMNS) * COLUMNS
    parts = 2 if gated else 1
    widths = [weight.shape[-2] for weight in weights]
    steps = K // cut.inputs // cut.splits
    stages = min(cut.stages, steps)
    whole = isinstance(x, Unnormed)
    given = (x.parts, x.residual, x.weight) if isinstance(x, Unnormed) else (x,)
    # How many products may be under way when the step before is fetched over: two of them fill the pipe.
    behind = 0 if gated or stages == 1 else 1

    def kernel(*refs):
        x_refs, refs = refs[: len(given)], refs[len(given) :]
        weight_refs, out_refs = refs[: len(widths)], refs[len(widths) : -4]
        weight_s, x_s, weight_ready, beside = refs[-4:]
        x_ready, squares_s = (None, beside) if whole else (beside, None)
        strip, split = lax.axis_index("strip"), lax.axis_index("split")

        def of_strip(each, run) -> None:
            """``run`` with the one of ``each`` that the strip lies in, and where its features begin in it."""
            begin, only = 0, len(each) == 1
            for ref, width in zip(each, [sum(widths)] if only else widths, strict=True):
                end = begin + width // ROWS
                taken = functools.partial(run, ref, (strip - begin) * ROWS)
                if only:
                    taken()
                else:
                    pl.when((strip >= begin) & (strip < end))(taken)
                begin = end

        def fetch(step, slot) -> None:
            inputs = pl.ds((split * steps + step) * cut.inputs, cut.inputs)

            def weight(ref, feature) -> None:
                for part in range(parts):
                    of_part = ref.at[part] if gated else ref
                    plgpu.copy_gmem_to_smem(
                        of_part.at[pl.ds(feature, ROWS), inputs],
                        weight_s.at[slot, part],
                        weight_ready.at[slot],
                    )

            of_strip(weight_refs, weight)
            if x_ready is None:
                return
            tokens = token_rows(T, columns, split)
            plgpu.copy_gmem_to_smem(x_refs[0].at[tokens, inputs], x_s.at[slot], x_ready.at[slot])

        def sums(*accumulators):
            @pl.loop(0, steps)
            def _(step):
                slot = lax.rem(step, stages)
                plgpu.barrier_wait(weight_ready.at[slot])
                if x_ready is not None:
                    plgpu.barrier_wait(x_ready.at[slot])
                x_step = x_s.at[split * steps + step if whole else slot]
                for part, accumulator in enumerate(accumulators):
                    plgpu.wgmma(accumulator, weight_s.at[slot, part], x_step.T)
                plgpu.wgmma_wait(behind)
                read = step - behind

                @pl.when((read >= 0) & (read + stages < steps))
                def _():
                    fetch(read + stages, lax.rem(read, stages))

            plgpu.wgmma_wait(0)
            return tuple(accumulator[...] for accumulator in accumulators)

        for first in range(stages):
            fetch(jnp.int32(first), first)
        if isinstance(x, Unnormed):
            normalise(x_s, x_refs, squares_s, layout, x.eps, interpret=interpret)
        found = pl.run_scoped(sums, *(plgpu.ACC((ROWS, columns)) for _ in range(parts)))
        if gated:
            gate, up = (each.astype(jnp.bfloat16).astype(jnp.float32) for each in found)
            gate = (gate * jax.nn.sigmoid(gate)).astype(jnp.bfloat16).astype(jnp.float32)
            found = (gate * up,)

        def write(ref, feature) -> None:
            place, values = ref.at[split, :, pl.ds(feature, ROWS)], found[0].astype(dtype)
            if interpret:
                place[...] = values.T[:T]
            else:
                put(place, values, jnp.int32(T))

        of_strip(out_refs, write)

    layout = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
    return plgpu.kernel(
        kernel,
        out_type=tuple(
            result(given[0], (cut.splits, T, width), dtype) for width in ([sum(widths)] if joined else widths)
        ),
        scratch_types=[
            plgpu.SMEM((stages, parts, ROWS, cut.inputs), jnp.bfloat16, transforms=layout),
            plgpu.SMEM(
                (K // cut.inputs if whole else stages, columns, cut.inputs), jnp.bfloat16, transforms=layout
            ),
            plgpu.Barrier(num_arrivals=parts, num_barriers=stages),
            plgpu.SMEM((4,), jnp.float32) if whole else plgpu.Barrier(num_barriers=stages),
        ],
        grid=(sum(widths) // ROWS, cut.splits),
        grid_names=("strip", "split"),
        kernel_name="dense_swiglu" if gated else "dense_products",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
        interpret=plgpu.InterpretGPUParams(detect_races=True) if interpret else None,
    )(*given, *weights)
