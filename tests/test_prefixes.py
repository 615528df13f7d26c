"""The list of prefixes against all that there are."""

from itertools import product

import pytest

from jddtree import prefixes
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
    found = listed(budget, depth, width)
    assert found is not None
    own = [tuple(rank for rank in column if rank < width) for column in found.ranks.T.tolist()]
    assert own == wanted
    assert found.depths.tolist() == [len(ranks) for ranks in wanted]
    assert found.last.tolist() == [ranks[-1] for ranks in wanted]
    for ranks, parent in zip(wanted, found.parents, strict=True):
        assert (wanted[parent] if parent >= 0 else ()) == ranks[:-1]


def test_a_long_list_is_none(monkeypatch):
    monkeypatch.setattr(prefixes, "MOST", 84)
    listed.cache_clear()
    assert listed(100, 3, 4) is not None  # 4 + 16 + 64
    monkeypatch.setattr(prefixes, "MOST", 83)
    listed.cache_clear()
    assert listed(100, 3, 4) is None
    listed.cache_clear()
