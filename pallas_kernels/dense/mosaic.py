"""Products with dense weights on Hopper (`mosaic_kernel`, `sum_kernel`): what they take, how work is cut."""

from dataclasses import dataclass
from itertools import accumulate

import jax
import jax.numpy as jnp

from pallas_kernels import device, tuning
from pallas_kernels.dense.unnormed import Unnormed
from pallas_kernels.norm import rms_norm

ROWS, COLUMNS = 64, 8
"""Features of a program, and what tokens must be a multiple of where they are more: wgmma's."""

WIDTH, CHANNELS = 3072, 512
"""A token's norm is left to the next product where it has so many channels at most, so that two programs find
room on a multiprocessor, and a multiple of so many.
"""

TOKENS = (32, 80)
"""Up to so many tokens, each with sizes of its own; with more, shared memory has no room for the steps."""


@dataclass(frozen=True)
class Sizes:
    """``inputs`` of a step, a multiple of 64; ``stages``: steps in flight. ``programs``: with fewer, the
    inputs are split, where a sum over splits is possible.
    """

    inputs: int
    stages: int
    programs: int


@dataclass(frozen=True)
class Cut:
    """Inputs of a step, steps in flight, and in how many parts the inputs are summed."""

    inputs: int
    stages: int
    splits: int


def whole_slots(rows: int, slots: int, dtype: jnp.dtype) -> int:
    """See `pallas_kernels.dense.api.whole_slots`."""
    if not device.is_hopper() or dtype != jnp.bfloat16 or rows * slots <= COLUMNS:
        return slots
    wide = next(wide for wide in range(slots, slots + COLUMNS) if rows * wide % COLUMNS == 0)
    return wide if rows * wide <= TOKENS[-1] else slots


def products(
    x: jax.Array | Unnormed,
    weights: tuple[jax.Array, ...],
    *,
    sizes: Sizes | None = None,
    interpret: bool = False,
) -> tuple[jax.Array, ...]:
    """See `pallas_kernels.dense.api.products`. ``sizes``: the device's own (`tuning`) if None; with
    ``interpret`` anywhere.

    Raises NotImplementedError off Hopper, for other dtypes than bfloat16, for more than 80 tokens, for more
    than 8 that are no multiple of 8, and for sizes that programs do not divide.
    """
    cut = _cut("dense_products", x, weights, sizes, interpret)
    # Imported late: where there is no GPU, Pallas may have no Mosaic either.
    from pallas_kernels.dense.mosaic_kernel import multiply

    if cut.splits == 1:
        # Side by side, since who reads them all wants one array; of a single token apart, since XLA would
        # take kernels to cut them.
        single = x.shape[0] == 1
        found = multiply(x, weights, cut, dtype=x.dtype, joined=not single, interpret=interpret)
        if single:
            return tuple(each[0] for each in found)
        joined = found[0][0]
    else:
        (joined,) = multiply(x, weights, cut, dtype=jnp.dtype(jnp.float32), interpret=interpret)
        joined = jnp.sum(joined, axis=0).astype(x.dtype)
    ends = accumulate(weight.shape[0] for weight in weights)
    return tuple(jnp.split(joined, list(ends)[:-1], axis=1))


def swiglu(
    x: jax.Array | Unnormed, gate_up: jax.Array, *, sizes: Sizes | None = None, interpret: bool = False
) -> jax.Array:
    """See `pallas_kernels.dense.api.swiglu`, and `products` for the rest."""
    cut = _cut("dense_swiglu", x, (gate_up,), sizes, interpret)
    from pallas_kernels.dense.mosaic_kernel import multiply

    return multiply(x, (gate_up,), cut, dtype=x.dtype, gated=True, interpret=interpret)[0][0]


def added(
    x: jax.Array,
    weight: jax.Array,
    residual: jax.Array,
    norm_weight: jax.Array,
    *,
    eps: float,
    unnormed: bool = False,
    sizes: Sizes | None = None,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array | Unnormed]:
    """See `pallas_kernels.dense.api.added`, and `products` for the rest; a single token of fewer inputs than
    features is refused.
    """
    device.require_one_dtype(x, residual, norm_weight)
    if (residual.shape, norm_weight.shape) != ((len(x), len(weight)), (len(weight),)):
        wrong = f"residual {residual.shape} and norm {norm_weight.shape}"
        raise ValueError(f"{wrong} do not fit {len(x)} x {len(weight)} outputs")
    if weight.shape[1] < weight.shape[0]:
        # Kimi K2.6's attention on one of eight devices, 1024 to 7168: the kernel that sums and normalises its
        # parts took more than XLA's norm and the product's gain together.
        if len(x) == 1:
            raise NotImplementedError(f"{weight.shape[1]} inputs are fewer than {weight.shape[0]} features")
        total = residual + products(x, (weight,), sizes=sizes, interpret=interpret)[0]
        return total, rms_norm(total, norm_weight, eps)
    cut = _cut("dense_added", x, (weight,), sizes, interpret)
    from pallas_kernels.dense.mosaic_kernel import multiply
    from pallas_kernels.dense.sum_kernel import add_parts

    (parts,) = multiply(x, (weight,), cut, dtype=jnp.dtype(jnp.float32), interpret=interpret)
    if unnormed and len(x) == 1 and _leaves_norms(residual.shape[1]):
        left = Unnormed(parts, residual, norm_weight, eps)
        return left.total(), left
    return add_parts(parts, residual, norm_weight, eps, interpret=interpret)


def _leaves_norms(channels: int) -> bool:
    """Whether a token's norm of so many channels may be left to the next product."""
    return channels <= WIDTH and channels % CHANNELS == 0


def _cut(
    operation: str,
    x: jax.Array | Unnormed,
    weights: tuple[jax.Array, ...],
    sizes: Sizes | None,
    interpret: bool,
) -> Cut:
    """How to cut x [T, K] times weights [..., O, K]. Raises NotImplementedError where it cannot be, and
    ValueError where the inputs differ.
    """
    if not interpret and not device.is_hopper():
        raise NotImplementedError("a kernel for Hopper GPUs")
    if isinstance(x, Unnormed):
        device.require_one_dtype(x.residual, x.weight, *weights)
    else:
        device.require_one_dtype(x, *weights)
    (tokens, inputs), features = x.shape, [weight.shape[-2] for weight in weights]
    if any(weight.shape[-1] != inputs for weight in weights):
        raise ValueError(f"weights {[weight.shape for weight in weights]} do not fit tokens of {inputs}")
    if isinstance(x, Unnormed) and not _leaves_norms(inputs):
        raise NotImplementedError(f"a norm of {inputs} channels")
    limit = next((each for each in TOKENS if tokens <= each), None)
    if x.dtype != jnp.bfloat16 or limit is None:
        raise NotImplementedError(f"{tokens} tokens in {x.dtype}: up to {TOKENS[-1]}, in bfloat16")
    if not tokens or (tokens > COLUMNS and tokens % COLUMNS):
        raise NotImplementedError(f"{tokens} tokens: up to {COLUMNS}, or a multiple of it")
    s = sizes or tuning.sizes(f"{operation}_{limit}", "mosaic_gpu", Sizes)
    if s.inputs % ROWS:
        raise ValueError(f"{operation}_{limit}: steps of {s.inputs} inputs, which {ROWS} does not divide")
    if inputs % s.inputs or any(count % ROWS for count in features):
        raise NotImplementedError(f"{ROWS} x {s.inputs} do not divide {features} x {inputs}")
    strips, steps = sum(features) // ROWS, inputs // s.inputs
    ways = [1] if operation == "dense_swiglu" else [n for n in range(1, steps + 1) if steps % n == 0]
    splits = next((n for n in ways if strips * n >= s.programs), ways[-1])
    return Cut(s.inputs, s.stages, splits)
