"""Writes answers with a target: many prompts at once, one sampled token a row and step."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jddtree.config import KimiK2Config
from scripts.pair.documents import Documents, Special
from scripts.pair.target import Params, new_cache, step

TEMPERATURES, SHARES = (0.0, 0.7, 1.0), (0.3, 0.3, 0.4)


@partial(jax.jit, static_argnames=("config",))
def write(
    config: KimiK2Config,
    params: Params,
    prompts: Int[Array, "B S"],
    lengths: Int[Array, " B"],
    temperatures: Float[Array, " B"],
    key: Array,
) -> Int[Array, "B S"]:
    """Fill every row after its prompt up to S tokens; what follows a stop token means nothing. Temperature 0
    is greedy.

    All rows stand at the same position: a prompt's tokens are fed one by one as well.
    """
    rows, slots = prompts.shape
    dtype = params["model.norm.weight"].dtype

    def body(position, carry):
        tokens, cache = carry
        logits, cache = step(config, params, cache, tokens[:, position], position)
        noise = jax.random.gumbel(jax.random.fold_in(key, position), logits.shape)
        warm = logits / jnp.maximum(temperatures, 1e-3)[:, None] + noise
        chosen = jnp.argmax(jnp.where(temperatures[:, None] > 0, warm, logits), axis=-1)
        following = jnp.where(position + 1 < lengths, tokens[:, position + 1], chosen)
        return tokens.at[:, position + 1].set(following), cache

    return jax.lax.fori_loop(0, slots - 1, body, (prompts, new_cache(config, rows, slots, dtype)))[0]


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
        parts.append(Documents.of(_cut(texts, lengths, documents.kinds[chosen], special), slots))
        written = sum(int(np.sum(part.lengths - part.prompts)) for part in parts)
        say(
            f"answers {number + 1}/{batches}  {written / 1e6:.2f} M tokens  "
            f"{written / (time.time() - begin) / 1e3:.0f}k tokens/s"
        )
    total = parts[0]
    for part in parts[1:]:
        total = total.joined(part)
    return total


def _cut(
    texts: np.ndarray, lengths: np.ndarray, kinds: np.ndarray, special: Special
) -> Iterator[tuple[np.ndarray, int, int]]:
    """Every text up to its first stop token after the prompt."""
    index = np.arange(texts.shape[1])
    stops = np.isin(texts, (special.end_of_turn, special.end_of_text)) & (index >= lengths[:, None])
    ends = np.where(stops.any(axis=1), stops.argmax(axis=1) + 1, texts.shape[1])
    for text, end, prompt, kind in zip(texts, ends, lengths, kinds, strict=True):
        yield text[:end], int(prompt), int(kind)
