"""What the evaluation counts."""

import pytest

from jddtree.finish import Generation
from scripts.pair.acceptance import committed, drafts_of, share_by_slot
from scripts.pair.distinct import distinct_share


def slots(*runs: Generation) -> list[float]:
    """How often each slot is right in the runs' own rounds."""
    return share_by_slot((run.output_ids, drafts_of(run)) for run in runs)


def chain(output: list[int], drafts: list[list[int]], lengths: list[int]) -> Generation:
    """A generation whose round i drafted ``drafts[i]`` and committed ``lengths[i]`` tokens."""
    trace = [
        {"tokens": [0, *draft], "accepted": list(range(n))} for draft, n in zip(drafts, lengths, strict=True)
    ]
    return Generation(output_ids=output, acceptance_lengths=lengths, trace=trace)


def test_a_slot_is_right_where_it_equals_the_text_at_its_own_position():
    # Round 1 starts at output 0, round 2 at output 3; the text ends before round 2's last slot.
    run = chain([10, 11, 12, 13, 14, 15], [[11, 12, 99], [14, 98, 97]], [3, 2])
    assert slots(run) == [1.0, 0.5, 0.0]
    assert committed([run]) == 2.5
    assert committed([Generation()]) is None


def test_rounds_weigh_alike_over_texts():
    runs = [chain([0] * 9, [[0]] * 4, [2] * 4), chain([1, 2], [[9]], [1])]
    assert committed(runs) == pytest.approx(9 / 5)
    assert slots(*runs) == [pytest.approx(4 / 5)]


def test_loops_lower_the_distinct_share():
    assert distinct_share([1, 2, 3, 4, 5]) == 1.0
    assert distinct_share([1, 2] * 10) == pytest.approx(2 / 17)
    assert distinct_share([1, 2]) == 1.0
