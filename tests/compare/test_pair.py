"""The self-test of a pair: a sound one passes, broken ones are told apart."""

from dataclasses import replace

import numpy as np
import pytest

from jddtree.compare.pair import Found, based, channels, examine, near, shifted
from jddtree.config import Rope
from jddtree.engine import Engine

SOUND = Found(
    8,
    texts=4,
    texts_exact=4,
    rounds=40,
    first=0.8,
    pair=3.0,
    rolled=1.1,
    below=2.5,
    above=2.0,
    perfect=8.0,
    bases={1e6: 1.9, 5e5: 2.0},
)


BROKEN = "acceptance is that of a broken drafter"
NOTHING = {"below": 1.0, "above": 1.0, "bases": {1e6: 1.05}}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "sound"),
        ({"pair": 1.15, **NOTHING}, BROKEN),
        ({"pair": 1.05, "rolled": 1.0, **NOTHING}, BROKEN),
        ({"above": 3.4}, f"{BROKEN}: with the layers one above it does better"),
        ({"pair": 1.0, "bases": {1e4: 2.6}}, f"{BROKEN}: with a rotary base of 10,000 it does better"),
        ({"bases": {1e6: 3.1}}, "sound"),
        (
            {"perfect": 5.0},
            "a draft without a mistake is not accepted: the decoder is broken, not the drafter",
        ),
        (
            {"texts_exact": 3},
            "the pair's text is not plain decoding's: the decoder is broken, not the drafter",
        ),
    ],
)
def test_verdicts(change, verdict):
    assert replace(SOUND, **change).verdict == verdict


def test_a_trained_pair_is_sound(trained, trained_runs):
    tasks = [Engine(trained, method="chain").task(ids, max_new=24) for ids in trained_runs["prompts"][:3]]
    found = examine(trained, tasks)
    assert found.verdict == "sound", found
    assert found.perfect == found.block_size == 8 and found.texts_exact == found.texts == 3
    assert found.pair > 2 > found.rolled
    assert trained.drafter.config.rope.theta not in found.bases


def test_taps_move_as_far_as_there_are_layers(trained):
    config = trained.drafter.config
    taps, last = config.target_layers, config.num_target_layers - 1
    assert shifted(config, 1) == tuple(min(tap + 1, last) for tap in taps)
    assert shifted(config, -99) == (0,) * len(taps)
    assert shifted(config, 0) == taps


def test_channels_are_those_of_the_layers_that_are_shown(trained):
    config = replace(trained.drafter.config, target_layers=(0, 3, 7), num_target_layers=8)
    features = np.array([[10 * layer, 10 * layer + 1] for layer in near(config)]).reshape(-1)
    assert near(config) == (0, 1, 2, 3, 4, 6, 7)
    assert features[channels(config, 0, 2)].tolist() == [0, 1, 30, 31, 70, 71]
    assert features[channels(config, -1, 2)].tolist() == [0, 1, 20, 21, 60, 61]
    assert features[channels(config, 1, 2)].tolist() == [10, 11, 40, 41, 70, 71]


def test_another_base_is_the_same_drafter_otherwise(trained):
    moved = based(trained.drafter, 500.0)
    assert moved.config == replace(trained.drafter.config, rope=Rope(500.0, None))
    assert trained.drafter.config.rope.theta == 10_000
