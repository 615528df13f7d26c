"""Which experts a token goes to, and how much each counts."""

from typing import NamedTuple

import jax

from pallas_kernels import dispatch
from pallas_kernels.routing import reference, triton


class Rule(NamedTuple):
    """How experts are chosen. chosen: experts a token. groups: into which the experts are cut, in order, of
    which ``kept_groups`` stay, those with the largest sum of their two best. normalised: whether a token's
    weights are divided by their sum, before they are multiplied by ``scale``.
    """

    chosen: int
    groups: int
    kept_groups: int
    normalised: bool
    scale: float


IMPLEMENTATIONS = (("triton", triton.route), ("xla", reference.route))


def route(
    logits: jax.Array,
    bias: jax.Array,
    valid: jax.Array,
    rule: Rule,
    *,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The experts with the largest sigmoid(logits) + bias; of equal ones the lower id (spec kimi 2.5).

    Args:
      logits: [T, E] float32; an expert's sigmoid is its weight before it is normalised.
      bias: [E] float32, added to choose and not to weigh.
      valid: [T] bool; a token that is not goes to no expert.
      implementation: name one to forbid fallback.

    Returns:
      Ids [T, K] int32, the best first, -1 where not valid, and weights [T, K] float32. Raises
      NotImplementedError where the named implementation takes no such device or rule.
    """
    return dispatch.call("routing", IMPLEMENTATIONS, implementation, logits, bias, valid, rule)
