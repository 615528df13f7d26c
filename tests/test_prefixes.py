"""The list of prefixes against all that there are."""

from itertools import product

import pytest

from jddtree.prefixes import listed


@pytest.mark.parametrize(("budget", "depth", "width"), [(1, 3, 4), (7, 3, 4), (12, 3, 2), (30, 2, 30)])
def test_it_holds_the_prefixes_that_few_enough_others_always_beat(budget, depth, width):
    every = [ranks for length in range(1, depth + 1) for ranks in product(range(width), repeat=length)]
    wanted = []
    for ranks in sorted(every):
        smaller = {
            other[:length]
            for other in product(*(range(rank + 1) for rank in ranks))
            for length in range(1, len(ranks) + 1)
        }
        if len(smaller) <= budget:
            wanted.append(ranks)
    found = listed(budget, depth, width, most=1000)
    assert found is not None
    own = [tuple(rank for rank in column if rank < width) for column in found.ranks.T.tolist()]
    assert own == wanted
    assert found.depths.tolist() == [len(ranks) for ranks in wanted]
    assert found.last.tolist() == [ranks[-1] for ranks in wanted]
    for ranks, parent in zip(wanted, found.parents, strict=True):
        assert (wanted[parent] if parent >= 0 else ()) == ranks[:-1]


def test_a_long_list_is_none():
    assert listed(100, 3, 4, most=84) is not None  # 4 + 16 + 64
    assert listed(100, 3, 4, most=83) is None
