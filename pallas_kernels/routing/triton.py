"""The choice of experts on GPUs (`triton_kernel`): one kernel for a sort, what it sorts, gathers and sums."""

import jax

from pallas_kernels import device


def route(
    logits: jax.Array, bias: jax.Array, valid: jax.Array, rule, *, interpret: bool = False
) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.routing.api.route`; with ``interpret`` anywhere.

    Raises NotImplementedError off an NVIDIA GPU of compute capability 8.0 and up, and for groups of experts.
    """
    if not interpret:
        device.require_triton()
    if rule.groups > 1:
        raise NotImplementedError(f"{rule.groups} groups of experts")
    # Imported late: where there is no GPU, Pallas may have no Triton either.
    from pallas_kernels.routing.triton_kernel import choose

    return choose(logits, bias, valid, rule, interpret=interpret)
