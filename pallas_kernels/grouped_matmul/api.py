"""Routed experts: every token through its chosen SwiGLU experts, weighted and summed."""

from typing import NamedTuple

import jax

from pallas_kernels import dispatch
from pallas_kernels.grouped_matmul import mosaic, reference, tpu, triton
from pallas_kernels.grouped_matmul.tiles import ExpertTiles


class Int4(NamedTuple):
    """INT4 weights as published: packed int32 [..., out, in/8], scale bfloat16 [..., out, in/32]."""

    packed: jax.Array
    scale: jax.Array


class Experts(NamedTuple):
    """Weights as published: gate and up [E, I, M], down [E, M, I], INT4 or plain."""

    gate: Int4 | jax.Array
    up: Int4 | jax.Array
    down: Int4 | jax.Array


IMPLEMENTATIONS = (
    ("mosaic_tpu", tpu.expert_mlp),
    ("mosaic_gpu", mosaic.expert_mlp),
    ("triton", triton.expert_mlp),
    ("xla", reference.expert_mlp),
)


def expert_mlp(
    x: jax.Array,
    expert_ids: jax.Array,
    expert_weights: jax.Array,
    experts: Experts | ExpertTiles,
    *,
    rounding: str,
    implementation: str | None = None,
) -> jax.Array:
    """y[t] = sum over k of weight[t, k] * down_e(silu(gate_e x[t]) * up_e x[t]), e = expert_ids[t, k].

    Args:
      x: [T, M] tokens; there may be more, of which the first T are taken.
      expert_ids: [T, K] int32; -1 routes to no expert.
      expert_weights: [T, K] float32.
      experts: as published, or INT4 in the order that a kernel reads (`tiles`).
      rounding: how INT4 becomes a number: "bfloat16" rounds q x scale, "float32" does not.
      implementation: name one to forbid fallback.

    Returns:
      [T, M] in x's dtype; expert outputs are rounded to x's dtype, then summed in float32.
    """
    return dispatch.call(
        "grouped_matmul",
        IMPLEMENTATIONS,
        implementation,
        x,
        expert_ids,
        expert_weights,
        experts,
        rounding=rounding,
    )
