"""Drafter training: a stopped run goes on as if it had not been."""

import numpy as np
import pytest

from jddtree.config import drafter_config, target_config
from jddtree.errors import InputError
from jddtree.models.target import Target
from scripts.pair.documents import Documents, Special, pack
from scripts.pair.drafter import init_drafter
from scripts.pair.fit_drafter import Training, fit_drafter
from scripts.pair.sizes import Shape, drafter_json
from tests import tiny

TARGET = tiny.QWEN3 | {"num_hidden_layers": 1}
RAW = drafter_json(TARGET, target_config(TARGET), Shape(1, 4, (0,), 2, 1, 16, width=32), mask=49)
CONFIG = drafter_config(RAW)
TRAINING = Training(
    steps=6, batch=2, anchors=5, rate=4e-3, loss="expected-length", seed=0, dtype="float32", int4=False
)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny.target(TARGET)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    texts = [(rng.integers(0, 48, 12).tolist(), 3, 0) for _ in range(16)]
    return pack(Documents.of(texts, 24), 24, Special(50 - 256), seed=0)


class StopError(Exception):
    pass


def fit(target, rows, state, training=TRAINING, stop_at=None, start=1):
    calls = []

    def judge(params) -> str:
        calls.append(None)
        if len(calls) == stop_at:
            raise StopError
        return "judged"

    return fit_drafter(
        CONFIG,
        target,
        rows,
        training,
        state=state,
        save_every=2,
        judge=judge,
        judge_every=1,
        say=lambda line: None,
        start=init_drafter(CONFIG, start),
    )


def test_a_stopped_run_goes_on_to_the_same_end(target, rows, tmp_path):
    whole = fit(target, rows, tmp_path / "whole")
    with pytest.raises(StopError):
        fit(target, rows, tmp_path / "cut", stop_at=3)  # one step after the last saved state
    resumed = fit(target, rows, tmp_path / "cut")
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(value, resumed[name])
    other = Training(**{**vars(TRAINING), "rate": 1e-3})
    with pytest.raises(InputError, match="other flags or data"):
        fit(target, rows, tmp_path / "cut", other)
    with pytest.raises(InputError, match="other flags or data"):
        fit(target, rows, tmp_path / "cut", start=2)


def test_too_many_anchors_are_refused(target, rows, tmp_path):
    with pytest.raises(InputError, match="25 anchors do not fit"):
        fit(target, rows, tmp_path / "x", Training(**{**vars(TRAINING), "anchors": 25}))
