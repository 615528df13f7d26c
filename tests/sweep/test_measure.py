"""What a sweep compiles."""

from jddtree.sweep.grid import groups
from jddtree.sweep.measure import keys


def test_caps_and_temperatures_of_a_kind_share_programs():
    grid = groups(["ar-stepwise", "chain", "chain@N", "tree"], [7, 16], [None, 2, 4], [0.0, 0.7, 1.0], [1, 8])
    found = keys(8, grid)
    # A chain in a pass of its own width is the chain. Two concurrencies, greedy and sampled.
    names = {(method.name, method.budget) for method, _, _ in found}
    assert names == {("ar", 0), ("chain", 7), ("chain", 16), ("tree", 7), ("tree", 16)}
    assert len(found) == 5 * 2 * 2
    assert sum(len(group.cells) for group in grid) == 2 * (11 + 10 + 10)
