"""Which cells a sweep has."""

import pytest

from jddtree.errors import InputError
from jddtree.state import Method
from jddtree.sweep.grid import Cell, check_methods, groups


def names(methods, *, budgets=(4, 8), topk=(None,), temperature=0.0):
    [group] = groups(methods, budgets, topk, [temperature], [2])
    return [cell.name for cell in group.cells]


def test_every_cell_is_there_once_and_the_baseline_first():
    asked = ["tree", "chain@N", "chain@4", "chain", "ar", "ar-stepwise"]
    assert names(asked) == ["ar", "tree(4)", "tree(8)", "chain@4", "chain@8", "chain", "ar-stepwise"]
    # A cap of the budget or more is no cap.
    assert names(["tree"], topk=(None, 4)) == ["ar", "tree(4)", "tree(8)", "tree(8, topk 4)"]
    assert names(["ar-stepwise", "chain"], temperature=1.0) == ["ar", "chain"]


def test_groups_are_what_is_compared():
    found = groups(["chain"], [4], [None], [0.0, 0.7], [1, 8])
    assert [(group.temperature, group.concurrency) for group in found] == [(0, 1), (0, 8), (0.7, 1), (0.7, 8)]
    assert all({cell.concurrency for cell in group.cells} == {group.concurrency} for group in found)


def test_programs():
    block = 8
    programs = {cell.name: cell.program(block) for cell in (
        Cell("ar", 0.0, 1), Cell("ar-stepwise", 0.0, 1), Cell("chain", 0.0, 1),
        Cell("chain@N", 0.0, 1, 16), Cell("tree", 0.0, 1, 16, 4),
    )}  # fmt: skip
    assert programs == {
        "ar": Method.plain(),
        "ar-stepwise": Method.plain(),
        "chain": Method("chain", 7, 7),
        "chain@16": Method("chain", 16, 7),
        "tree(16, topk 4)": Method("tree", 16, 7),
    }


@pytest.mark.parametrize(
    ("methods", "budgets", "reason"),
    [
        (["trees"], [4], "'trees' is none of"),
        (["chain@0"], [4], "'chain@0' is none of"),
        (["tree"], [0], "--budgets must be 1 or more, not 0"),
        (["chain@N"], [], "chain@N needs --budgets"),
    ],
)
def test_methods_that_cannot_be_run(methods, budgets, reason):
    with pytest.raises(InputError, match=reason):
        check_methods(methods, budgets)
