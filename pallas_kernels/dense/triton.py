"""Products with dense weights on GPUs (`triton_kernel`, `sum_kernel`): what they take, how work is cut."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import device, tuning

STEP = 512
"""Inputs must be a multiple of this: whole steps, whatever the splits."""

TOKENS = (16, 32, 80)
"""Up to so many tokens, each with sizes of its own. With more, XLA's products are as fast."""


@dataclass(frozen=True)
class Sizes:
    """``features`` and ``inputs`` of a tile of weights, ``warps`` a program, ``stages`` of tiles in flight.
    ``resident``: warps a multiprocessor up to which the inputs are split; at 1 they are not. Features and
    inputs are powers of two, 16 and more.
    """

    features: int
    inputs: int
    warps: int
    stages: int
    resident: int


@dataclass(frozen=True)
class Tiles:
    """`Sizes`, and in how many parts the inputs are summed."""

    features: int
    inputs: int
    warps: int
    stages: int
    splits: int


def products(
    x: jax.Array, weights: tuple[jax.Array, ...], *, sizes: Sizes | None = None, interpret: bool = False
) -> tuple[jax.Array, ...]:
    """See `pallas_kernels.dense.api.products`. ``sizes``: the device's own (`tuning`) if None; with
    ``interpret`` anywhere.

    Raises NotImplementedError off an NVIDIA GPU of compute capability 9.0, for other dtypes than bfloat16,
    for more than 80 tokens, and for sizes that tiles do not divide.
    """
    tiles = _tiles("dense_products", x, weights, TOKENS, sizes, interpret)
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.dense.triton_kernel import multiply

    return multiply(x, weights, tiles, interpret=interpret)


def swiglu(
    x: jax.Array, gate_up: jax.Array, *, sizes: Sizes | None = None, interpret: bool = False
) -> jax.Array:
    """See `pallas_kernels.dense.api.swiglu`, and `products` for the rest; more than 32 tokens are refused."""
    tiles = _tiles("dense_swiglu", x, (gate_up,), TOKENS[:-1], sizes, interpret)
    from pallas_kernels.dense.triton_kernel import gated

    return gated(x, gate_up, tiles, interpret=interpret)


def added(
    x: jax.Array,
    weight: jax.Array,
    residual: jax.Array,
    norm_weight: jax.Array,
    *,
    eps: float,
    sizes: Sizes | None = None,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.dense.api.added`, and `products` for the rest; more than 16 tokens are refused, and
    fewer inputs than features.
    """
    device.require_one_dtype(x, residual, norm_weight)
    if weight.shape[1] < weight.shape[0]:
        # Kimi K2.6's attention on one of eight devices, 1024 to 7168: the kernel that sums and normalises its
        # parts took more than XLA's norm and the product's gain together.
        raise NotImplementedError(f"{weight.shape[1]} inputs are fewer than {weight.shape[0]} features")
    tiles = _tiles("dense_added", x, (weight,), TOKENS[:1], sizes, interpret)
    from pallas_kernels.dense.sum_kernel import add_parts
    from pallas_kernels.dense.triton_kernel import parts

    found = parts(x, weight, tiles, interpret=interpret)
    return add_parts(found, residual, norm_weight, eps, interpret=interpret)


def _tiles(
    operation: str,
    x: jax.Array,
    weights: tuple[jax.Array, ...],
    limits: tuple[int, ...],
    sizes: Sizes | None,
    interpret: bool,
) -> Tiles:
    """How to cut x [T, K] times weights [..., O, K]. Raises NotImplementedError where it cannot be."""
    # Elsewhere no product was timed beside XLA's.
    if not interpret and device.require_triton() != "9.0":
        raise NotImplementedError("for compute capability 9.0")
    device.require_one_dtype(x, *weights)
    (tokens, inputs), features = x.shape, [weight.shape[-2] for weight in weights]
    limit = next((each for each in limits if tokens <= each), None)
    if x.dtype != jnp.bfloat16 or limit is None:
        raise NotImplementedError(f"{tokens} tokens in {x.dtype}: up to {limits[-1]}, in bfloat16")
    s = sizes or tuning.sizes(f"{operation}_{limit}", "triton", Sizes)
    if inputs % STEP or any(count % s.features for count in features):
        raise NotImplementedError(f"tiles of {s.features} x {STEP} do not divide {features} x {inputs}")
    warps, splits = s.warps * sum(features) // s.features, 1
    wanted = s.resident * device.processors(128) if s.resident > 1 else 0
    while splits * warps < wanted and inputs % (2 * splits * s.inputs) == 0:
        splits *= 2
    return Tiles(s.features, s.inputs, s.warps, s.stages, splits)
