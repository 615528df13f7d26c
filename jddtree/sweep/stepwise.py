"""The naive baseline: one compiled step a token; argmax and the ends of texts are the host's."""

import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jddtree import cache
from jddtree.decoder import Decoder, Task
from jddtree.finish import Generation
from jddtree.models.target import Cache, Target
from pallas_kernels.tree_attention.api import causal_mask


def step(
    target: Target,
    kept: Cache,
    tokens: Int[Array, " B"],
    lengths: Int[Array, " B"],
    active: Bool[Array, " B"],
) -> tuple[Cache, Float[Array, "B V"]]:
    """Append one token a row to the cache, which holds ``lengths`` of them; the logits after it."""
    passed = target(
        tokens[:, None], lengths[:, None], active[:, None], causal_mask(1), kept, lengths, taps=()
    )
    kept = cache.append(kept, passed.fresh, active.astype(jnp.int32), lengths)
    return kept, target.logits(passed.hidden)[:, 0]


class Stepwise:
    """Greedy decoding as a first draft of it looks, compiled now. Prefill and cache are those of ``decoder``,
    a plain one.
    """

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        began = time.perf_counter()
        # Flattened once: a compiled call should not walk the modules again.
        self._weights, modules = jax.tree.flatten(decoder.models[0])

        def program(weights, *rest):
            return step(jax.tree.unflatten(modules, weights), *rest)

        row = jax.ShapeDtypeStruct((decoder.rows,), jnp.int32)
        active = jax.ShapeDtypeStruct((decoder.rows,), jnp.bool_)
        lowered = jax.jit(program, donate_argnums=1).lower(
            self._weights, decoder.abstract_state.target_cache, row, row, active
        )
        self._step = lowered.compile(decoder.compiler_options)
        self.compile_seconds = time.perf_counter() - began

    def decode(self, tasks: Sequence[Task]) -> tuple[list[Generation], float, list[float]]:
        """Decode a full batch: the texts, the seconds of the prefill, and for every row the seconds of the
        steps until it ended.
        """
        began = time.perf_counter()
        *_, state = self.decoder.prefilled(tasks)
        first = np.asarray(jnp.take_along_axis(state.tokens, state.lengths[:, None], axis=1))[:, 0]
        kept, prefill_seconds = state.target_cache, time.perf_counter() - began
        results = [Generation() for _ in tasks]
        lengths = np.array([len(task.prompt) for task in tasks], np.int32)
        tokens, active = first.astype(np.int32), np.ones((len(tasks),), bool)
        row_seconds = [0.0] * len(tasks)
        self._take(tasks, results, tokens, active)
        began = time.perf_counter()
        while active.any():
            kept, logits = self._step(self._weights, kept, tokens, lengths, active)
            tokens = np.argmax(np.asarray(logits), axis=-1).astype(np.int32)
            lengths = lengths + active
            was = active.copy()
            for row in np.flatnonzero(was).tolist():
                results[row].acceptance_lengths.append(1)
            self._take(tasks, results, tokens, active)
            spent = time.perf_counter() - began
            for row in np.flatnonzero(was & ~active).tolist():
                row_seconds[row] = spent
        return results, prefill_seconds, row_seconds

    def _take(
        self, tasks: Sequence[Task], results: list[Generation], tokens: np.ndarray, active: np.ndarray
    ) -> None:
        """Add the active rows' tokens, and end rows at a stop or at their length."""
        limit = self.decoder.max_position
        for row in np.flatnonzero(active).tolist():
            task, result = tasks[row], results[row]
            result.output_ids.append(int(tokens[row]))
            if result.output_ids[-1] in task.stop_ids:
                result.finish_reason = "stop"
            elif len(result.output_ids) >= task.tokens(limit) - len(task.prompt):
                result.finish_reason = "length"
            active[row] = result.finish_reason is None
