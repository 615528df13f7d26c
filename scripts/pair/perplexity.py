"""Perplexity of a target, as it decodes, on encoded documents."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from rich.console import Console
from rich.progress import track

from jddtree.models.target import Target
from pallas_kernels.tree_attention.api import causal_mask
from scripts.pair.documents import KINDS, Documents


def perplexity_by_kind(
    target: Target, documents: Documents, *, texts: int, rows: int, width: int, dtype: jnp.dtype
) -> dict[str, float]:
    """exp of the mean loss in nats a token, prompts included, over the first ``texts`` documents of each kind
    that have at most ``width`` ids. The ids must be of the target's tokenizer.
    """
    run = jax.jit(_losses, static_argnames=("dtype",))
    starts = documents.starts()
    found = {}
    for index, kind in track(list(enumerate(KINDS)), "perplexity", console=Console(stderr=True)):
        chosen = np.flatnonzero((documents.kinds == index) & (documents.lengths <= width))[:texts]
        total, count = 0.0, 0
        for begin in range(0, len(chosen), rows):
            ids, lengths = np.zeros((rows, width), np.int32), np.zeros(rows, np.int32)
            for row, i in enumerate(chosen[begin : begin + rows]):
                lengths[row] = documents.lengths[i]
                ids[row, : lengths[row]] = documents.tokens[starts[i] : starts[i] + lengths[row]]
            total += float(run(target, ids, lengths, dtype=dtype))
            count += int(np.maximum(lengths - 1, 0).sum())
        if count:
            found[kind] = math.exp(total / count)
    return found


def _losses(
    target: Target, ids: Int[Array, "B N"], lengths: Int[Array, " B"], dtype: jnp.dtype
) -> Float[Array, ""]:
    """Sum of all next tokens' losses; every row is one document of ``lengths`` ids."""
    rows, width = ids.shape
    positions = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), ids.shape)
    valid = positions < lengths[:, None]
    empty, none = target.new_cache(rows, 1, dtype), jnp.zeros(rows, jnp.int32)
    out = target(ids, positions, valid, causal_mask(width), empty, none, ())
    logits = target.logits(out.hidden)[:, :-1]
    right = jnp.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]
    return jnp.sum((jax.nn.logsumexp(logits, axis=-1) - right) * valid[:, 1:])
