"""Writes texts with the training form of the target: many prompts at once, one token a row and step."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jddtree.config import KimiK2Config
from scripts.pair.documents import Special
from scripts.pair.target import Params, new_cache, step


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


def cut(
    texts: np.ndarray, lengths: np.ndarray, kinds: np.ndarray, special: Special
) -> Iterator[tuple[np.ndarray, int, int]]:
    """(ids, prompt ids, kind) of every text, up to its first stop token after the prompt."""
    index = np.arange(texts.shape[1])
    stops = np.isin(texts, (special.end_of_turn, special.end_of_text)) & (index >= lengths[:, None])
    ends = np.where(stops.any(axis=1), stops.argmax(axis=1) + 1, texts.shape[1])
    for text, end, prompt, kind in zip(texts, ends, lengths, kinds, strict=True):
        yield text[:end], int(prompt), int(kind)
