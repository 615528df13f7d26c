"""Drafts from every position, against those of the decoder's rounds."""

import jax.numpy as jnp

from jddtree.state import Method
from scripts.pair.acceptance import drafts_of, share_by_slot
from scripts.pair.everywhere import drafts_everywhere
from tests import tiny

PROMPTS = [11, 49, 3, 0, 27], [40, 30, 20, 10, 49, 0, 49, 13, 22]
MAX_NEW = 12


def test_they_are_what_a_chain_drafts_where_its_rounds_begin():
    target, drafter = tiny.target(tiny.QWEN3, seed=1), tiny.drafter()
    decoder = tiny.decoder(target, drafter, Method.chain(tiny.DFLASH["block_size"]), rows=2, slots=64)
    runs = tiny.decode(decoder, list(PROMPTS), max_new=MAX_NEW)
    texts = [(prompt, run.output_ids) for prompt, run in zip(PROMPTS, runs, strict=True)]
    found = drafts_everywhere(target, drafter, texts)
    for run, drafts in zip(runs, found, strict=True):
        assert len(drafts) == len(run.output_ids) == MAX_NEW
        for at, tokens in drafts_of(run):
            assert drafts[at] == list(tokens)


def test_a_drafter_that_knows_the_text_is_right_everywhere():
    target, prompt = tiny.target(tiny.QWEN3, seed=1), PROMPTS[0]
    text = tiny.plain(target, prompt, 24)
    places = jnp.arange(len(prompt), len(prompt) + len(text))
    table = jnp.zeros((1, 64, 50)).at[0, places, jnp.asarray(text)].set(9.0)
    drafter = tiny.Scripted(tiny.drafter(), table, jnp.array([True]))
    (drafts,) = drafts_everywhere(target, drafter, [(prompt, text[:16])])
    assert share_by_slot([(text[:16], enumerate(drafts))]) == [1.0] * (tiny.DFLASH["block_size"] - 1)
