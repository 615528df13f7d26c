"""Statistics of rounds made by hand, and the stages that are timed."""

import re

import pytest

from jddtree import Engine, decode
from jddtree.finish import Generation
from jddtree.statistics import Acceptance, Stages, acceptance, as_json, as_text

# Root, its three children, and under the second of them two.
WIDE = {"tokens": [9, 1, 2, 3, 4, 5], "parents": [-1, 0, 0, 0, 2, 2], "depths": [0, 1, 1, 1, 2, 2]}
ROOT = {"tokens": [9], "parents": [-1], "depths": [0], "accepted": [0]}


def test_figures_of_rounds_made_by_hand():
    first = Generation(
        acceptance_lengths=[3, 1],
        trace=[{**WIDE, "accepted": [0, 2, 5]}, {**WIDE, "accepted": [0]}],
        experts=[[4, 6], [2, 2]],
    )
    second = Generation(
        acceptance_lengths=[2, 1, 1],
        trace=[{**WIDE, "accepted": [0, 3]}, ROOT, ROOT],
        experts=[[4, 6], [2, 2], [0, 1]],
    )
    found = acceptance([[first, second]])
    assert found == Acceptance(
        rounds=5,
        committed_per_round=8 / 5,
        by_depth=[2 / 5, 1 / 5],
        # Second child and second grandchild, then a third child.
        by_rank=[0.0, 2 / 3, 1 / 3],
        nodes=15 / 5,
        wasted=12 / 5,
        experts=[2.0, 3.0],
    )
    assert as_json(found, {"draft": 1.0})["acceptance"]["wasted"] == 2.4
    lines = as_text(found, {"draft": 1.25, "verify": 2.0})
    assert lines == [
        "rounds 5, committed a round 1.60, nodes a round 3.0, of them wasted 2.4",
        "rounds that reached depth 1, 2, ...: 40% 20%",
        "accepted nodes that were the 1st, 2nd, ... child: 0% 67% 33%",
        "distinct experts a verify, each MoE layer: 2.0 3.0",
        "stages run apart, ms: draft 1.25, verify 2.00",
    ]


def test_rounds_that_accept_nothing_and_no_rounds_at_all():
    found = acceptance([[Generation(trace=[ROOT], acceptance_lengths=[1], experts=[[]])]])
    assert (found.by_depth, found.by_rank, found.nodes, found.wasted, found.experts) == ([], [], 0, 0, [])
    assert "depth 1, 2, ...: none" in "\n".join(as_text(found, {}))
    assert acceptance([[Generation()]]) is None
    assert as_json(None, {}) == {"acceptance": None, "stage_ms": {}}


@pytest.mark.parametrize(
    ("method", "stages"),
    [("tree", ["draft", "build", "verify", "accept", "commit"]), ("ar", ["verify", "accept", "commit"])],
)
def test_stages_are_named_once_for_times_and_for_profiles(trained, method, stages):
    engine = Engine(trained, method=method, budget=6)
    task = engine.task([3, 1, 4], max_new=8)
    decoder = engine.decoder([task])
    times = Stages(decoder, task).times(repetitions=2)
    assert list(times) == stages
    assert min(times.values()) > 0
    # The compiled round carries the same names.
    names = set(re.findall(r'op_name="[^"]*?/(draft|build|verify|accept|commit)/', decoder._chunk.as_text()))
    assert names == set(stages)
    assert all(callable(getattr(decode, name)) for name in stages)
    # Timing leaves the decoder as it was.
    assert len(engine.generate([task])[0].output_ids) == 8
