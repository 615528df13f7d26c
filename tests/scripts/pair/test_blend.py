"""How often kinds are seen."""

import numpy as np
import pytest

from jddtree.errors import InputError
from scripts.pair.blend import WEIGHTS, blend, weights_of
from scripts.pair.documents import KINDS, Documents, Special

SPECIAL = Special(384)


def documents_of(counts: dict[str, int]) -> Documents:
    """Documents of 8 equal ids, each its own id; one fills a row of 8."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    return Documents.of(((np.full(8, i), 0, KINDS.index(kind)) for i, kind in enumerate(kinds)), 8)


def test_kinds_are_seen_in_proportion_to_their_weights_and_evenly():
    ours = blend(documents_of({"story": 12, "docs": 30, "facts": 4}), WEIGHTS | {"facts": 0.0}, 8, SPECIAL, 0)
    batches = ours.batches(11, seed=1)  # a pass is 12 stories and a third of 30 docs: two batches of 11
    seen = np.concatenate([next(batches)[0][:, 0] for _ in range(2 * 30)])
    times = np.bincount(seen, minlength=46)
    assert times[:12].mean() == pytest.approx(30, rel=0.05)
    assert times[12:42].mean() == pytest.approx(10, rel=0.05)
    assert times[12:42].max() - times[12:42].min() <= 4
    assert times[42:].sum() == 0
    report = ours.report(330.0)
    assert report["story"] == {"tokens": 96, "share": 96 / 176, "seen": pytest.approx(330 / 176)}
    assert report["docs"]["seen"] == pytest.approx(330 / 176 / 3)


def test_batches_can_start_later():
    ours = blend(documents_of({"story": 9, "maths": 9}), WEIGHTS, 8, SPECIAL, 0)
    whole, later = ours.batches(4, seed=2), ours.batches(4, seed=2, start=7)
    for _ in range(7):
        next(whole)
    for _ in range(5):
        np.testing.assert_array_equal(next(whole)[0], next(later)[0])


def test_wrong_weights_and_too_little_text_are_refused():
    assert weights_of(["maths=0.5"]) == WEIGHTS | {"maths": 0.5}
    for word in ("poem=1", "story", "story=-1", "story=inf"):
        with pytest.raises(InputError, match=word):
            weights_of([word])
    few = documents_of({"story": 3})
    with pytest.raises(InputError, match="too few"):
        next(blend(few, WEIGHTS, 8, SPECIAL, 0).batches(4, seed=0))
    with pytest.raises(InputError, match="no text"):
        blend(few, WEIGHTS | {"story": 0.0}, 8, SPECIAL, 0)
