"""Training the target: against repeats, and over an interruption."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree.config import target_config
from jddtree.errors import InputError
from scripts.pair import fit_target, muon
from scripts.pair.blend import WEIGHTS, blend
from scripts.pair.documents import ChatForm, Documents
from scripts.pair.fit_target import Plan, train_step
from scripts.pair.sizes import SIZES, target_json
from scripts.pair.target import init_target, next_logits
from scripts.pair.unlikelihood import Prompts

SIZE = SIZES["toy"]
CONFIG = target_config(target_json(SIZE))
DTYPE = jnp.dtype(jnp.float32)
PLAN = Plan(6, 4, 4e-3, 0, rounds=2, round_steps=2, weight=1.0, texts=16, slots=16, save_every=1)


def test_steps_lower_the_probability_of_marked_tokens():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 300, (4, 16)).astype(np.int32)
    positions = np.tile(np.arange(16, dtype=np.int32), (4, 1))
    own = np.full((1, 16), 7, np.int32)  # 7 7 7 ...
    marks = np.arange(16)[None] >= 4
    params = init_target(CONFIG, 0)
    # A head that says 7 whatever comes.
    params["lm_head.weight"] = params["lm_head.weight"].at[7].set(params["model.embed_tokens.weight"][7] / 2)
    moments = muon.start(params)

    run = jax.jit(partial(next_logits, CONFIG, cudnn=False))

    def probability() -> float:
        logits, *_ = run(params, own, positions[:1])
        return float(jnp.mean(jax.nn.softmax(logits, axis=-1)[..., 7]))

    before = probability()
    assert before > 0.5
    for _ in range(12):
        params, moments, *_ = train_step(
            CONFIG,
            params,
            moments,
            tokens,
            positions,
            (own, positions[:1], marks),
            np.float32(4e-3),
            np.float32(0),
            np.float32(1),
            False,
            DTYPE,
        )
    assert probability() < before / 2


def test_a_stopped_run_goes_on_as_if_it_had_not(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    documents = Documents.of(((rng.integers(0, 300, 12), 4, i % 3) for i in range(48)), 12)
    form = cast(ChatForm, SimpleNamespace(special=SIZE.special, before=[1], between=[2]))
    rows, lines = blend(documents, WEIGHTS, 16, SIZE.special, 0), []

    def fit(plan: Plan, folder: str):
        return fit_target.fit_target(
            CONFIG,
            rows,
            Prompts(documents, form, 8),
            documents,
            plan,
            cudnn=False,
            dtype=DTYPE,
            state=tmp_path / folder / "state.safetensors",
            say=lines.append,
        )

    whole, report = fit(PLAN, "whole")
    assert sorted(report["distinct"]) == [2, 4, 6]
    assert set(report["distinct"][6]) == {"story", "explain", "chat", "varied"}
    assert set(report["loss_before_rounds"]) == {"story", "explain", "chat"}
    for stop in (2, 5):  # before a round, and inside one: it goes on from the round's beginning
        calls = iter(range(100))

        def interrupted(*arguments, calls=calls, stop=stop):
            if next(calls) == stop:
                raise KeyboardInterrupt
            return train_step(*arguments)

        monkeypatch.setattr(fit_target, "train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(PLAN, f"stopped {stop}")
        monkeypatch.undo()
        lines.clear()
        again, _ = fit(PLAN, f"stopped {stop}")
        assert f"going on after step {min(stop, 4)}" in " ".join(lines)
        for name, value in whole.items():
            np.testing.assert_array_equal(again[name], value, err_msg=name)
    with pytest.raises(InputError, match="other flags or data"):
        fit(replace(PLAN, rate=1e-3), "stopped 2")
    with pytest.raises(InputError, match="more than all"):
        replace(PLAN, rounds=4)
    with pytest.raises(InputError, match="--unlike-slots 32 must be at most --width 16"):
        fit(replace(PLAN, slots=32), "too long")


def test_a_kind_that_fits_no_row_has_no_loss():
    long, short = ([1] * 20, 0, 0), ([1, 2, 3], 0, 1)
    found = fit_target.loss_by_kind(
        CONFIG, init_target(CONFIG, 0), Documents.of([long, short], 40), SIZE.special, 16, 2, False
    )
    assert list(found) == ["explain"]
