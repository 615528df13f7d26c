"""Statistics of repetitions made by hand."""

import pytest

from jddtree.exactness import Exactness, compare
from jddtree.finish import Generation
from jddtree.sweep.figures import exactness, interval, paired, sign_test
from jddtree.sweep.measure import Batch, checks


def batch(seconds: float, *outputs: list[int], margins: float = 1.0) -> Batch:
    results = [
        Generation(output_ids=ids, margins=[margins] * len(ids), acceptance_lengths=[1] * (len(ids) - 1))
        for ids in outputs
    ]
    return Batch([1] * len(outputs), results, 0.1, seconds, 0.0, 3, [seconds] * len(outputs))


@pytest.mark.parametrize(
    ("wins", "losses", "p"), [(0, 0, 1.0), (5, 0, 1 / 32), (0, 5, 1.0), (8, 2, 56 / 1024), (3, 3, 42 / 64)]
)
def test_the_sign_test_is_the_exact_binomial(wins, losses, p):
    assert sign_test(wins, losses) == pytest.approx(p, abs=1e-12)


def test_pairs_are_batches_of_the_same_repetition_and_count_seconds_a_token():
    text = [1, 2, 3]
    plain = [[batch(1.0, text), batch(2.0, text)], [batch(1.0, text), batch(2.0, text)]]
    # Faster, slower; equal, then faster a token though slower in all.
    ours = [[batch(0.5, text), batch(3.0, text)], [batch(1.0, text), batch(3.0, [1] * 6)]]
    assert paired(ours, plain) == (2, 1)


def test_the_interval_is_within_the_repetitions_and_always_the_same():
    low, high = interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (low, high) == interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert 1 <= low < 3 < high <= 100
    assert interval([5.0]) == (5.0, 5.0) and interval([]) is None


def test_the_worst_repetition_of_a_text_counts():
    plain = [[batch(1.0, [1, 2, 3], [4, 5, 6], margins=1e-5)]]
    ours = [[batch(1.0, [1, 2, 3], [4, 9, 6])], [batch(1.0, [1, 2], [4, 5, 6])]]
    found = exactness(checks(ours, plain), "float32")
    # The first text merely ends early once; the second parts from plain decoding at a near tie once.
    assert (found["equal"], found["ties"], found["bugs"]) == (0, 1, 1)
    assert found["largest_tie_gap"] == 1e-5 and "one of the two ends: bug" in found["first_bug"]


def test_gaps_decide_by_dtype():
    check = compare([1], [2], [0.1])
    assert exactness([check, Exactness(True, True)], "bfloat16")["bugs"] == 0
    assert exactness([check], "float32")["bugs"] == 1
