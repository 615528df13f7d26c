import pytest

from jddtree.exactness import Exactness, compare


def test_equal_outputs():
    found = compare([1, 2], [1, 2], [0.5, 0.0])
    assert found == Exactness(checked=True, equal=True)
    assert found.verdict("float32") == "equal to plain decoding"


@pytest.mark.parametrize(
    ("gap", "dtype", "verdict"),
    [
        (5e-5, "float32", "tie within rounding"),
        (2e-4, "float32", "bug"),
        (0.2, "bfloat16", "tie within rounding"),
        (0.3, "bfloat16", "bug"),
    ],
)
def test_the_plain_runs_gap_decides_what_a_difference_is(gap, dtype, verdict):
    found = compare([1, 9, 3], [1, 2, 3], [0.0, gap, 0.0])
    assert (found.equal, found.first_divergence, found.gap) == (False, 1, gap)
    assert found.is_tie(dtype) == (verdict != "bug")
    line = found.verdict(dtype)
    assert line.endswith(verdict) and "output token 1" in line and f"{gap:.2e}" in line


@pytest.mark.parametrize(("output", "plain"), [([1], [1, 2]), ([1, 2], [1])])
def test_an_output_that_merely_ends_early_is_a_bug(output, plain):
    found = compare(output, plain, [1e-9] * len(plain))
    assert (found.equal, found.first_divergence, found.gap) == (False, 1, None)
    assert not found.is_tie("bfloat16")
    assert found.verdict("float32").endswith("where one of the two ends: bug")


def test_unchecked_says_so():
    assert Exactness(checked=False).verdict("float32") == "not checked"
