"""Writes a target's answers to the prompts of a corpus."""

import time
from collections.abc import Callable

import jax
import numpy as np

from jddtree.config import KimiK2Config
from scripts.pair.documents import Documents, Special
from scripts.pair.sampler import cut, write
from scripts.pair.target import Params

TEMPERATURES, SHARES = (0.0, 0.7, 1.0), (0.3, 0.3, 0.4)


def write_answers(
    config: KimiK2Config,
    params: Params,
    documents: Documents,
    special: Special,
    *,
    batches: int,
    rows: int,
    slots: int,
    seed: int,
    say: Callable[[str], None],
) -> Documents:
    """Answers to random prompts of ``documents``, ``rows`` at once, each text at most ``slots`` tokens with
    its prompt.

    Temperatures follow TEMPERATURES and SHARES. A text that does not stop is kept, cut at ``slots``.
    """
    rng = np.random.default_rng(seed)
    with_prompt = np.flatnonzero((documents.prompts > 0) & (documents.prompts < slots // 2))
    starts = documents.starts()
    parts: list[Documents] = []
    begin = time.time()
    for number in range(batches):
        chosen = rng.choice(with_prompt, rows, replace=len(with_prompt) < rows)
        prompts = np.full((rows, slots), special.pad, np.int32)
        for row, i in enumerate(chosen):
            prompts[row, : documents.prompts[i]] = documents.tokens[
                starts[i] : starts[i] + documents.prompts[i]
            ]
        lengths = documents.prompts[chosen]
        warm = rng.choice(TEMPERATURES, rows, p=SHARES).astype(np.float32)
        key = jax.random.fold_in(jax.random.key(seed), number)
        texts = np.asarray(write(config, params, prompts, lengths, warm, key))
        parts.append(Documents.of(cut(texts, lengths, documents.kinds[chosen], special), slots))
        written = sum(int(np.sum(part.lengths - part.prompts)) for part in parts)
        say(
            f"answers {number + 1}/{batches}  {written / 1e6:.2f} M tokens  "
            f"{written / (time.time() - begin) / 1e3:.0f}k tokens/s"
        )
    total = parts[0]
    for part in parts[1:]:
        total = total.joined(part)
    return total
