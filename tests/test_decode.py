"""The round: greedy output is plain decoding's whatever is drafted, on both targets and at every width."""

import json
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree import tree
from jddtree.decode import build
from jddtree.decoder import Prefills
from jddtree.finish import Generation
from jddtree.load import load_pair
from jddtree.sampling import GREEDY, Sample, stack
from jddtree.state import Method, Request, new_state
from tests import tiny

BLOCK = tiny.DFLASH["block_size"]
# Nothing drafted; less than a chain, a chain, a tree; and more slots than a word of the mask has bits.
BUDGETS = {"qwen3": (0, 1, BLOCK - 1, 2 * BLOCK), "kimi": (0, BLOCK - 1, 2 * BLOCK, 64)}
FAMILIES = {"qwen3": (tiny.QWEN3, 1), "kimi": (tiny.KIMI, 3)}
"""Config and seed; the seeds make texts with few repetitions."""
MAX_NEW = 40

# What drafts each row: a random DFlash, one that knows the text, one that is always wrong, and one that has
# the right token first, second or not at all.
DRAFTED, PERFECT, WRONG, MIXED = range(4)
PROMPTS = (
    [11, 49, 3, 0, 27],
    [5, 44],
    [1, 2, 3, 4, 5, 6, 7, 8, 9],
    [40, 30, 20, 10, 49, 0, 49, 13, 22, 7, 1],
)


@cache
def target_of(family: str):
    raw, seed = FAMILIES[family]
    return tiny.target(raw, seed=seed)


@cache
def plain_of(family: str) -> tuple[list[int], ...]:
    """Plain text of every prompt, with what a last round may draft beyond it."""
    return tuple(tiny.plain(target_of(family), prompt, MAX_NEW + BLOCK) for prompt in PROMPTS)


@cache
def drafter_of(family: str) -> tiny.Scripted:
    random = np.random.default_rng(5)
    table = random.normal(size=(len(PROMPTS), 64, 50)).astype(np.float32)
    for row, (prompt, text) in enumerate(zip(PROMPTS, plain_of(family), strict=True)):
        for position, token in enumerate(text, len(prompt)):
            place = random.integers(3) if row == MIXED else {PERFECT: 0, WRONG: 2}.get(row, 0)
            table[row, position, token] = (9.0, 8.5, -np.inf)[place]
            if place == 1:
                table[row, position, (token + 1) % 50] = 9.0
    return tiny.Scripted(tiny.drafter(), jnp.asarray(table), jnp.arange(len(PROMPTS)) != DRAFTED)


@cache
def prefills_of(family: str) -> Prefills:
    return Prefills()


@cache
def decoder_of(family: str, method: Method):
    decoder = tiny.decoder(target_of(family), drafter_of(family), method, rows=len(PROMPTS))
    if method.depth:
        # Compiling is most of this file's time, and a prefill does not depend on the budget.
        decoder._prefills = prefills_of(family)
    return decoder


def decode(family: str, method: Method, topk: int | None = None) -> list[Generation]:
    return tiny.decode(decoder_of(family, method), PROMPTS, max_new=MAX_NEW, topk=topk)


@cache
def fresh_margins(family: str) -> list[np.ndarray]:
    """Top-1 minus top-2 of a pass over each whole text, for every generated token."""
    margins = []
    for prompt, text in zip(PROMPTS, plain_of(family), strict=True):
        logits = tiny.forward(target_of(family), np.array(prompt + text[: MAX_NEW - 1], np.int32))
        best = np.sort(logits[len(prompt) - 1 :], axis=-1)
        margins.append(best[:, -1] - best[:, -2])
    return margins


def test_the_texts_hold_the_ids_that_are_easily_lost():
    """Id 0, and the drafter's mask id, appear in what is generated."""
    seen = {token for family in FAMILIES for text in plain_of(family) for token in text[:MAX_NEW]}
    assert {0, tiny.DFLASH["dflash_config"]["mask_token_id"]} <= seen


@pytest.mark.parametrize(
    ("family", "budget"), [(family, budget) for family in FAMILIES for budget in BUDGETS[family]]
)
def test_output_is_plain_decodings_at_every_width(family, budget):
    method = Method.tree(BLOCK, budget)
    for topk in (1, 2, None):
        rows = decode(family, method, topk)
        for row, text, margins in zip(rows, plain_of(family), fresh_margins(family), strict=True):
            assert row.output_ids == text[:MAX_NEW]
            assert row.finish_reason == "length"
            # What a round leaves in the caches is what a fresh pass over the text would put there.
            np.testing.assert_allclose(row.margins, margins, rtol=0, atol=1e-4)
        check_acceptance(rows, budget)


def check_acceptance(rows: list[Generation], budget: int) -> None:
    for row in rows:
        lengths = row.acceptance_lengths
        assert 1 + sum(lengths) >= MAX_NEW > 1 + sum(lengths[:-1])
        assert all(len(entry["tokens"]) <= budget + 1 for entry in row.trace)
        assert [len(entry["accepted"]) for entry in row.trace] == lengths
    assert set(rows[PERFECT].acceptance_lengths) == {1 + min(budget, BLOCK - 1)}
    assert set(rows[WRONG].acceptance_lengths) == {1}


@pytest.mark.parametrize("family", FAMILIES)
def test_paths_that_are_not_contiguous_are_taken(family):
    row = decode(family, Method.tree(BLOCK, 2 * BLOCK))[MIXED]
    paths = [entry["accepted"] for entry in row.trace]
    assert any(len(path) > 2 and path[-1] - path[-2] > 1 for path in paths)
    alone = decode(family, Method.tree(BLOCK, 2 * BLOCK), topk=1)[MIXED]
    assert len(paths) < len(alone.trace)


def test_after_a_jump_the_drafter_knows_what_a_fresh_prefill_would_tell_it():
    """Its next tree is the first tree of the prompt that already holds what was committed."""
    decoder = decoder_of("qwen3", Method.tree(BLOCK, 2 * BLOCK))
    text, prompt = plain_of("qwen3")[DRAFTED], PROMPTS[DRAFTED]
    row = decode("qwen3", Method.tree(BLOCK, 2 * BLOCK))[DRAFTED]
    committed = np.cumsum(row.acceptance_lengths)
    jumps = [done for done, entry in zip(committed, row.trace, strict=True) if max(entry["accepted"]) > 1]
    for done in jumps[:3]:
        prompts = [prompt + text[:done], *PROMPTS[1:]]
        again = tiny.decode(decoder, prompts, max_new=2)[DRAFTED].trace[0]
        assert again == row.trace[committed.tolist().index(done) + 1]
    assert len(jumps) > 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_of_one_child_a_node_is_the_chain_round_for_round(family):
    chain = decode(family, Method.chain(BLOCK))
    tree = decode(family, Method.tree(BLOCK, BLOCK - 1), topk=1)
    assert [row.output_ids for row in chain] == [text[:MAX_NEW] for text in plain_of(family)]
    assert [row.acceptance_lengths for row in chain] == [row.acceptance_lengths for row in tree]
    assert [row.trace for row in chain] == [row.trace for row in tree]
    assert len(set(chain[MIXED].acceptance_lengths)) > 1
    if family == "qwen3":
        wide = decode(family, Method.chain(BLOCK, 2 * BLOCK))
        assert [row.trace for row in wide] == [row.trace for row in chain]


def test_a_round_that_holds_the_whole_chain_accepts_no_less_than_it():
    family, held, better = "qwen3", 0, 0
    row, text = decode(family, Method.tree(BLOCK, 2 * BLOCK))[MIXED], plain_of(family)[MIXED]
    best = np.asarray(drafter_of(family).table)[MIXED].argmax(-1)
    done = 0
    for entry, accepted in zip(row.trace, row.acceptance_lengths, strict=True):
        place = len(PROMPTS[MIXED]) + done
        spine = best[place + 1 : place + BLOCK].tolist()
        agrees = [drafted == token for drafted, token in zip(spine, text[done + 1 :], strict=False)]
        by_chain = 1 + (agrees.index(False) if False in agrees else len(agrees))
        paths = {0: []}
        for slot in range(1, len(entry["tokens"])):
            paths[slot] = [*paths[entry["parents"][slot]], entry["tokens"][slot]]
        if spine in paths.values():
            held += 1
            assert accepted >= by_chain
            better += accepted > by_chain
        done += accepted
    assert held > 3 and better > 0


def test_the_trained_pairs_tree_of_one_child_a_node_is_the_reference_chain(tmp_path):
    folder = tiny.TRAINED
    pair = load_pair(
        folder / "target", folder / "drafter", dtype="float32", cache_dir=tmp_path, say=lambda line: None
    )
    runs = json.loads((folder / "runs.json").read_text())
    run = next(run for run in runs["runs"] if run["method"] == "dflash" and not run["stop_token_ids"])
    decoder = tiny.decoder(pair.target, pair.drafter, Method.tree(8, 7), slots=128)
    prompt = runs["prompts"][run["prompt_index"]]
    (row,) = tiny.decode(decoder, [prompt], max_new=run["max_new_tokens"], topk=1)
    assert row.output_ids == run["output_ids"]
    assert row.acceptance_lengths == run["acceptance_lengths"]
    assert row.committed_per_round > 2


def test_methods_without_anything_to_draft_are_plain_rounds():
    assert Method.tree(1, 16) == Method.tree(8, 0) == Method("tree", 0, 0)
    assert Method.chain(1) == Method("chain", 0, 0)
    assert (Method.plain().budget, Method.plain().depth) == (0, 0)
    assert Method.tree(8, 16) == Method("tree", 16, 7)
    assert Method.chain(8) == Method("chain", 7, 7)
    assert Method.chain(1, 16) == Method("chain", 0, 0)


def test_a_greedy_row_of_a_drafter_that_asks_for_it_gets_a_sharper_tree():
    changed = tiny.DFLASH["dflash_config"] | {"greedy_multiplier": 3.0}
    drafter, method = tiny.drafter(tiny.DFLASH | {"dflash_config": changed}), Method.tree(3, 8)
    state = new_state(tiny.target(tiny.QWEN3), drafter, method, 2, 32, jnp.dtype(jnp.float32))
    number = partial(np.full, (2,), dtype=np.int32)
    request = Request(
        max_new=number(9),
        max_position=number(30),
        budget=number(8),
        topk=number(50),
        stop=np.zeros((2, 50), bool),
        sampling=stack([GREEDY, Sample(temperature=1.0)], 50),
    )
    logits = jax.random.normal(jax.random.key(0), (2, 3, 50))
    found = build(drafter, request, state, logits, method)
    limits = {"row_budget": number(8), "topk": number(50), "depth_limit": jnp.full(2, 30)}
    sharp, plain = (tree.build(factor * logits, state.lengths, budget=8, **limits) for factor in (3.0, 1.0))
    np.testing.assert_array_equal(found.tokens, np.stack([sharp.tokens[0], plain.tokens[1]]))
    assert not np.array_equal(sharp.tokens[0], plain.tokens[0])
