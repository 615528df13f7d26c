"""The drafter in training, run in the real decoder: greedy chains on prompts that it does not learn from."""

from collections.abc import Sequence

import jax.numpy as jnp

from jddtree.config import DFlashConfig
from jddtree.decoder import Decoder, Task
from jddtree.models.target import Target
from jddtree.state import Method
from scripts.pair.acceptance import committed, drafts_of, share_by_slot
from scripts.pair.drafter import Params, as_model

NEW_TOKENS = 96


class Judge:
    """Compiles once, on its first use; then any parameters of the same shapes can be judged."""

    def __init__(
        self,
        target: Target,
        config: DFlashConfig,
        prompts: Sequence[Sequence[int]],
        stop_ids: Sequence[int],
        dtype: jnp.dtype,
    ):
        self._target, self._config, self._dtype = target, config, dtype
        self._tasks = [Task(prompt, max_new=NEW_TOKENS, stop_ids=stop_ids) for prompt in prompts]
        self._decoder: Decoder | None = None

    def __call__(self, params: Params) -> dict[str, float | list[float] | None]:
        """``committed``: tokens a round, over all rounds. ``slots`` [D]: how often each slot was right."""
        drafter = as_model(self._config, {name: value.astype(self._dtype) for name, value in params.items()})
        if self._decoder is None:
            self._decoder = Decoder(
                self._target,
                drafter,
                Method.chain(self._config.block_size),
                rows=len(self._tasks),
                slots=max(len(task.prompt) for task in self._tasks) + NEW_TOKENS,
                dtype=self._dtype,
            )
        else:
            self._decoder.exchange(drafter)
        *_, rows = self._decoder.decode(self._tasks)
        slots = [round(share, 4) for share in share_by_slot((run.output_ids, drafts_of(run)) for run in rows)]
        return {"committed": committed(rows), "slots": slots}
