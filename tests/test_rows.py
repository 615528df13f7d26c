"""Rows of one compiled program: each is what it is alone, whatever its neighbours ask for or come to."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from flax import nnx

from jddtree.decoder import Decoder, Prefills, Task
from jddtree.finish import Generation
from jddtree.sampling import GREEDY, Mode, Sample
from jddtree.state import Method, Options
from tests import tiny

BUDGET, ROWS, SLOTS, NEW = 12, 6, 80, 30
BLOCK = 8
OPTIONS = Options(Mode(sampled=True, cuts=True), top_logprobs=3)
METHODS = {
    "tree": Method.tree(BLOCK, BUDGET),
    "chain": Method.chain(BLOCK),
    "ar": Method.plain(),
}


@pytest.fixture(scope="module")
def prompts(trained_runs) -> list[list[int]]:
    """Of different lengths."""
    whole = trained_runs["prompts"]
    return [whole[0], whole[1][:5], whole[2], whole[0][:1], whole[1], whole[2][:9]]


@pytest.fixture(scope="module")
def decoder_of(trained) -> Callable[..., Decoder]:
    prefills = cache(lambda depth, rows: Prefills())

    @cache
    def make(name: str = "tree", rows: int = ROWS) -> Decoder:
        decoder = tiny.decoder(
            trained.target, trained.drafter, METHODS[name], rows=rows, slots=SLOTS, options=OPTIONS, rounds=4
        )
        decoder._prefills = prefills(METHODS[name].depth, rows)
        return decoder

    return make


@pytest.fixture(scope="module")
def tasks(prompts, trained) -> list[Task]:
    """Everything that a row may have of its own."""
    wishes = [
        {"budget": 3, "topk": 2},
        {"policy": Sample(0.8, top_p=0.95, seed=3), "max_new": 17},
        {"policy": Sample(1.1, top_k=20, seed=3), "budget": 0},
        {"policy": Sample(0.6, min_p=0.05, seed=2**32 - 1), "topk": 1},
        {"policy": Sample(1e-6, seed=9), "max_context": len(prompts[4]) + 13},
        {"policy": Sample(0.5, seed=1), "max_new": 1},
    ]
    return [
        Task(prompt, **{"max_new": NEW, "name": f"row {row}", **own})
        for row, (prompt, own) in enumerate(zip(prompts, wishes, strict=True))
    ]


@pytest.fixture(scope="module")
def alone(decoder_of, tasks) -> list[Generation]:
    return [row for task in tasks for row in tiny.run(decoder_of(rows=1), [task])]


def check_same(row: Generation, single: Generation) -> None:
    """All but rounding."""
    for name in ("margins", "logprobs"):
        np.testing.assert_allclose(getattr(row, name), getattr(single, name), rtol=0, atol=1e-4)
    values = [[value for likeliest in each.top_logprobs for _, value in likeliest] for each in (row, single)]
    np.testing.assert_allclose(*values, rtol=0, atol=1e-4)
    loose = {"margins": [], "logprobs": [], "top_logprobs": []}
    assert replace(row, **loose) == replace(single, **loose)


def test_every_row_is_what_it_is_alone(decoder_of, tasks, alone, trained):
    rows = tiny.run(decoder_of(), tasks)
    for row, single in zip(rows, alone, strict=True):
        check_same(row, single)
    assert [len(row.output_ids) for row in rows] == [NEW, 17, NEW, NEW, 13, 1]
    # Trees of several sizes and accepted drafts, or this would show little.
    nodes = [{len(entry["tokens"]) - 1 for entry in row.trace} for row in rows]
    assert nodes[0] == {3} and nodes[2] == {0} and nodes[1] >= {BUDGET} and nodes[5] == set()
    for row in (rows[0], rows[1], rows[3]):
        assert row.committed_per_round > 1.2


def test_stops_of_one_row_are_not_anothers(decoder_of, tasks, alone, trained):
    """Rows end in different rounds by ids and by strings; the rest go on."""
    ids = [row.output_ids for row in alone]
    stop_id = next(token for token in ids[0][5:] if token not in ids[0][:5])
    text = trained.tokenizer.decode(ids[3])
    stop = next(text[at : at + 2] for at in range(6, len(text)) if text.find(text[at : at + 2]) == at)
    changed = list(tasks)
    changed[0], changed[3] = replace(tasks[0], stop_ids=[stop_id]), replace(tasks[3], stop_strings=[stop])
    rows = tiny.run(decoder_of(), changed, trained.tokenizer)
    assert rows[0].output_ids == ids[0][: ids[0].index(stop_id) + 1]
    assert rows[3].text == text[: text.find(stop)]
    assert rows[3].output_ids == ids[3][: len(rows[3].output_ids)] and len(rows[3].output_ids) < NEW
    assert rows[0].finish_reason == rows[3].finish_reason == "stop"
    assert len(rows[3].acceptance_lengths) <= len(alone[3].acceptance_lengths)
    for row in (1, 2, 4, 5):
        check_same(replace(rows[row], text=None), alone[row])


def test_rows_without_a_task_are_inert(decoder_of, tasks, alone):
    rows = tiny.run(decoder_of(), tasks[:2])
    assert len(rows) == 2
    for row, single in zip(rows, alone, strict=False):
        check_same(row, single)


def test_a_cancelled_row_ends_and_the_others_go_on(decoder_of, tasks, alone):
    growing = decoder_of().decode(tasks)
    for step, rows in enumerate(growing):
        if step == 1:
            size = len(rows[2].output_ids)
            rows[2].finish_reason = "cancelled"
    assert 1 < size == len(rows[2].output_ids) < NEW
    assert rows[2].output_ids == alone[2].output_ids[:size]
    for row in (0, 1, 3, 4, 5):
        check_same(rows[row], alone[row])


def test_closing_the_generator_cancels_what_still_runs(decoder_of, tasks):
    growing = decoder_of().decode(tasks)
    rows = next(growing)
    growing.close()
    assert [row.finish_reason for row in rows] == ["cancelled"] * 5 + ["length"]
    assert [len(row.output_ids) for row in rows] == [1] * ROWS


def test_a_seed_gives_its_text_wherever_it_runs(decoder_of, prompts):
    policies = [Sample(seed=5), Sample(seed=6), GREEDY, Sample(seed=5), Sample(1e-6, seed=5), Sample(seed=7)]
    tasks = [Task(prompts[0], max_new=NEW, policy=policy) for policy in policies]
    texts = [row.output_ids for row in tiny.run(decoder_of(), tasks)]
    assert [row.output_ids for row in tiny.run(decoder_of(rows=1), tasks[:1])] == texts[:1]
    assert texts[0] == texts[3]
    assert texts[2] == texts[4]
    assert len({tuple(texts[row]) for row in (0, 1, 2, 5)}) == 4


def test_trees_chains_and_plain_rounds_sample_the_same_text(decoder_of, tasks, alone):
    for method in ("chain", "ar"):
        wishes = [replace(task, budget=None) for task in tasks]
        rows = tiny.run(decoder_of(method), wishes)
        assert [row.output_ids for row in rows] == [row.output_ids for row in alone]
        for row, single in zip(rows, alone, strict=True):
            np.testing.assert_allclose(row.logprobs, single.logprobs, rtol=0, atol=1e-4)
    assert {length for row in rows for length in row.acceptance_lengths} == {1}


def test_log_probabilities_are_those_of_a_pass_over_the_text(trained, tasks, alone):
    """Of the target's own distribution, whatever temperature and cuts chose the token."""
    for task, row in zip(tasks, alone, strict=True):
        text = [*task.prompt, *row.output_ids]
        logits = tiny.forward(trained.target, np.array(text[:-1], np.int32))[len(task.prompt) - 1 :]
        wanted = np.asarray(jax.nn.log_softmax(logits.astype(np.float64)))
        chosen = wanted[np.arange(len(wanted)), row.output_ids]
        np.testing.assert_allclose(row.logprobs, chosen, rtol=0, atol=1e-4)
        best = -np.sort(-wanted, axis=1)[:, :3]
        top = np.array([[value for _, value in likeliest] for likeliest in row.top_logprobs])
        np.testing.assert_allclose(top, best, rtol=0, atol=1e-4)
        of_ids = [[wanted[at, token] for token, _ in each] for at, each in enumerate(row.top_logprobs)]
        np.testing.assert_allclose(of_ids, top, rtol=0, atol=1e-4)
        assert min(row.logprobs) < -0.01


# Loud numerics: after one token, which row 0 alone comes to, the target's logits are not numbers.


@pytest.fixture(scope="module")
def rare(tasks, alone) -> int:
    """A token of row 0's text that no other row holds, though one drafted it in vain."""
    rows = list(zip(tasks[1:], alone[1:], strict=True))
    others = {token for task, row in rows for token in (*task.prompt, *row.output_ids)}
    drafted = {token for _, row in rows for entry in row.trace for token in entry["tokens"]}
    text = alone[0].output_ids
    return next(
        token for place, token in enumerate(text) if place > 5 and token in drafted - others - {*text[:place]}
    )


@pytest.fixture
def broken_after(decoder_of, trained, monkeypatch):
    """The decoder with weights that give no number once the row holds a certain token."""

    def make(token: int) -> Decoder:
        target, decoder = nnx.clone(trained.target), decoder_of()
        weight = target.embed_tokens.weight
        weight.set_value(weight[...].at[token].set(np.nan))
        monkeypatch.setattr(decoder, "_weights", jax.tree.leaves((target, trained.drafter)))
        return decoder

    return make


def test_a_row_with_a_bad_logit_fails_by_name_and_the_others_go_on(broken_after, tasks, alone, rare):
    rows = tiny.run(broken_after(rare), tasks)
    whole = alone[0].output_ids
    sound = whole[: whole.index(rare) + 1]
    assert rows[0].finish_reason == "error"
    position = len(tasks[0].prompt) + len(rows[0].output_ids)
    assert rows[0].error == f"row 0: the target's logits for position {position} are not finite"
    assert rows[0].output_ids == sound
    for row, single in zip(rows[1:], alone[1:], strict=True):
        check_same(row, single)


def test_a_stop_right_before_a_bad_logit_wins(broken_after, tasks, rare):
    (row, *_) = tiny.run(broken_after(rare), [replace(tasks[0], stop_ids=[rare])])
    assert (row.finish_reason, row.error, row.output_ids[-1]) == ("stop", None, rare)


def test_a_bad_logit_after_the_prompt_gives_no_token(broken_after, tasks, alone, rare):
    bad = replace(tasks[0], prompt=[*tasks[0].prompt, rare])
    rows = tiny.run(broken_after(rare), [tasks[1], bad])
    check_same(rows[0], alone[1])
    assert (rows[1].output_ids, rows[1].finish_reason) == ([], "error")
    assert rows[1].error == f"row 0: the target's logits for position {len(bad.prompt)} are not finite"
