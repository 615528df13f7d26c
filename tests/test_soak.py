"""Thousands of rounds over rows that come and go: nothing is compiled anew and nothing is left behind."""

import gc
import logging

import jax
import numpy as np
import pytest

from jddtree.decoder import Task
from jddtree.sampling import GREEDY, Mode, Sample
from jddtree.state import Method, Options
from tests import tiny

ROWS, SLOTS, ROUNDS = 4, 64, 2000


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.fixture(scope="module")
def decoder():
    raw = {**tiny.QWEN3, "num_hidden_layers": 1, "vocab_size": 20}
    drafter = {**tiny.DFLASH, "num_hidden_layers": 1, "vocab_size": 20, "layer_types": ["full_attention"]}
    drafter |= {"num_target_layers": 1, "dflash_config": {"mask_token_id": 19, "target_layer_ids": [0]}}
    return tiny.decoder(
        tiny.target(raw),
        tiny.drafter(drafter),
        Method.tree(4, 6),
        rows=ROWS,
        slots=SLOTS,
        options=Options(Mode(sampled=True, cuts=True)),
    )


def random_task(random: np.random.Generator) -> Task:
    policies = [GREEDY, Sample(1.0, seed=int(random.integers(99))), Sample(0.7, top_k=5, top_p=0.9)]
    return Task(
        random.integers(0, 20, random.integers(1, 30)).tolist(),
        max_new=int(random.integers(1, 33)),
        policy=policies[random.integers(3)],
        budget=int(random.integers(0, 7)),
        topk=int(random.integers(1, 7)),
        stop_ids=random.integers(0, 20, random.integers(0, 2)).tolist(),
    )


def test_two_thousand_rounds_leave_nothing_behind(decoder, caplog):
    random, rounds, reasons, before = np.random.default_rng(11), 0, set(), None

    def batch() -> int:
        tasks = [random_task(random) for _ in range(random.integers(1, ROWS + 1))]
        growing = decoder.decode(tasks)
        for rows in growing:
            if random.random() < 0.02:
                rows[0].finish_reason = rows[0].finish_reason or "cancelled"
            if random.random() < 0.01:
                growing.close()
        for task, row in zip(tasks, rows, strict=True):
            assert row.finish_reason is not None and row.error is None
            assert len(row.output_ids) <= task.max_new and np.isfinite(row.margins).all()
            reasons.add(row.finish_reason)
        return max(len(row.acceptance_lengths) for row in rows)

    for _ in range(3):
        batch()  # compiles the prefill, and fills the caches of the host
    seconds, before = decoder.compile_seconds, live_bytes()
    with jax.log_compiles(), caplog.at_level(logging.DEBUG, logger="jax"):
        while rounds < ROUNDS:
            rounds += batch()
    assert [r.getMessage() for r in caplog.records if "ompil" in r.getMessage()] == []
    assert decoder.compile_seconds == seconds
    assert live_bytes() <= before
    assert reasons == {"stop", "length", "cancelled"}
