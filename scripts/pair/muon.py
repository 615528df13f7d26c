"""Muon for matrices, Adam for the rest.

Muon replaces a matrix's momentum by its nearest orthogonal matrix, found by five Newton-Schulz steps with the
coefficients of K. Jordan et al. (2024); the update is scaled to the size of an Adam step (0.2 sqrt(max(out,
in)), arXiv 2502.16982), so that one learning rate serves both. Matrices of one shape are treated together:
few large products instead of hundreds of small ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Params = dict[str, jax.Array]
ADAM_NAMES = ("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight")
MOMENTUM, WEIGHT_DECAY, ADAM_B1, ADAM_B2, EPSILON = 0.95, 0.1, 0.9, 0.95, 1e-8


class Moments(NamedTuple):
    """``first``: momentum of every parameter; ``second``: mean square, of Adam's parameters alone; ``count``:
    steps.
    """

    first: Params
    second: Params
    count: jax.Array


def by_muon(name: str, value: jax.Array) -> bool:
    """Whether a parameter is a matrix (or a stack of them) inside the network."""
    return value.ndim >= 2 and not name.endswith(ADAM_NAMES)


def start(params: Params) -> Moments:
    """Zero moments, float32."""
    return Moments(
        {name: jnp.zeros_like(value) for name, value in params.items()},
        {name: jnp.zeros_like(value) for name, value in params.items() if not by_muon(name, value)},
        jnp.zeros((), jnp.int32),
    )


def orthogonal(x: Float[Array, "N out in"]) -> Float[Array, "N out in"]:
    """Nearly orthogonal matrices with the singular vectors of ``x``; bfloat16 arithmetic, float32 result."""
    flip = x.shape[1] > x.shape[2]
    x = x.swapaxes(1, 2) if flip else x
    x = (x / (jnp.linalg.norm(x, axis=(1, 2), keepdims=True) + 1e-7)).astype(jnp.bfloat16)

    def closer(_, x: jax.Array) -> jax.Array:
        gram = x @ x.swapaxes(1, 2)
        return 3.4445 * x + (-4.7750 * gram + 2.0315 * (gram @ gram)) @ x

    x = jax.lax.fori_loop(0, 5, closer, x).astype(jnp.float32)
    return x.swapaxes(1, 2) if flip else x


def update(params: Params, grads: Params, moments: Moments, rate: jax.Array) -> tuple[Params, Moments]:
    """One step with learning rate ``rate``; gradients are clipped to norm 1 together."""
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
    clip = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
    count = moments.count + 1
    first, second, new = {}, {}, {}
    shapes: dict[tuple[int, ...], list[str]] = {}
    for name, value in params.items():
        g = grads[name] * clip
        if by_muon(name, value):
            first[name] = MOMENTUM * moments.first[name] + g
            shapes.setdefault(value.shape[-2:], []).append(name)
            continue
        first[name] = ADAM_B1 * moments.first[name] + (1 - ADAM_B1) * g
        second[name] = ADAM_B2 * moments.second[name] + (1 - ADAM_B2) * g * g
        mean = first[name] / (1 - ADAM_B1**count)
        square = second[name] / (1 - ADAM_B2**count)
        new[name] = value - rate * mean / (jnp.sqrt(square) + EPSILON)
    for shape, names in shapes.items():
        nesterov = [(grads[n] * clip + MOMENTUM * first[n]).reshape(-1, *shape) for n in names]
        step = orthogonal(jnp.concatenate(nesterov)) * (0.2 * max(shape) ** 0.5)
        at = 0
        for name, part in zip(names, nesterov, strict=True):
            delta = step[at : at + len(part)].reshape(params[name].shape)
            new[name] = params[name] * (1 - rate * WEIGHT_DECAY) - rate * delta
            at += len(part)
    return new, Moments(first, second, count)


def schedule(done: float, rate: float) -> float:
    """Learning rate at a share ``done`` of the run: up over 2 %, level to 30 %, then down to 1 % in a
    straight line.
    """
    if done < 0.02:
        return rate * (done + 0.001) / 0.021
    return rate * (1.0 if done < 0.3 else max(0.01, (1 - done) / 0.7))
