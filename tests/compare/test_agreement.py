"""Figures of a stage, and what rounding may excuse."""

import numpy as np
import pytest

from jddtree.compare.agreement import agreement, paths, text_verdict, tree_verdict
from jddtree.exactness import TIE_LIMITS

TINY = TIE_LIMITS["float32"] / 10


def tree(tokens, parents, logits):
    return {
        "tree tokens": np.array(tokens, np.float32),
        "tree parents": np.array(parents, np.float32),
        "draft logits": np.array(logits, np.float32),
    }


def text(ids, gaps):
    return {"greedy ids": np.array(ids, np.int32), "greedy gaps": np.array(gaps, np.float32)}


def test_figures_of_logits() -> None:
    theirs = np.log(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], np.float32))
    ours = np.log(np.array([[0.25, 0.5, 0.25], [0.25, 0.5, 0.25]], np.float32))
    found = agreement("logits", [(theirs, ours)], "float32")
    assert found.verdict == "bug"
    assert found.max_abs == pytest.approx(np.log(2), rel=1e-6)
    assert found.kl == pytest.approx(0.25 * np.log(2) / 2, rel=1e-5)
    assert found.top_1 == 0.5
    assert found.relative == pytest.approx(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs), rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_a_bug(value: float) -> None:
    ours = np.array([1, value], np.float32)
    assert agreement("norm", [(np.ones(2, np.float32), ours)], "float32").verdict == "bug"


def test_another_shape_is_a_bug() -> None:
    found = agreement("norm", [(np.ones(2, np.float32), np.ones(3, np.float32))], "float32")
    assert (found.verdict, found.note) == ("bug", "shapes differ: [2] there, [3] here")


def test_bfloat16_may_differ_more_but_a_weight_may_not() -> None:
    theirs, ours = np.ones(4, np.float32), np.full(4, 1.01, np.float32)
    assert agreement("layer 1", [(theirs, ours)], "float32").verdict == "bug"
    assert agreement("layer 1", [(theirs, ours)], "bfloat16").verdict == "equal"
    assert agreement("layer 1 router bias", [(theirs, ours)], "bfloat16").verdict == "bug"


def test_paths() -> None:
    assert paths(np.array([4, 5, 6], np.int32), np.array([0, 1, 0], np.int32)) == [(4,), (4, 5), (6,)]


def test_trees_are_compared_as_sets_of_prefixes() -> None:
    logits = [[3, 2, 0], [3, 2, 0]]
    there, here = tree([0, 1], [0, 0], logits), tree([1, 0], [0, 0], logits)
    assert tree_verdict([there], [here], "float32").verdict == "equal"


@pytest.mark.parametrize(("gap", "verdict"), [(TINY, "tie"), (0.01, "bug")])
def test_nodes_within_rounding_are_a_tie(gap: float, verdict: str) -> None:
    logits = [[3, 2, 2 - gap]]
    found = tree_verdict([tree([0, 1], [0, 0], logits)], [tree([0, 2], [0, 0], logits)], "float32")
    assert found.verdict == verdict
    assert found.note.startswith("prompt 1: 1 of 2 nodes differ")


def test_trees_of_other_sizes_are_a_bug() -> None:
    logits = [[3, 2, 2]]
    assert tree_verdict([tree([0, 1], [0, 0], logits)], [tree([0], [0], logits)], "float32").verdict == "bug"


def test_a_bug_in_one_text_is_not_hidden_by_a_tie_in_the_next() -> None:
    equal = text([1, 2], [5, 5])
    tie, bug = text([1, 2], [5, TINY]), text([1, 2], [5, 1])
    other = text([1, 3], [0, 0])
    assert text_verdict([equal], [equal], "float32").verdict == "equal"
    assert text_verdict([equal, tie], [equal, other], "float32").verdict == "tie"
    assert text_verdict([tie, bug], [other, other], "float32").verdict == "bug"
    found = text_verdict([bug, tie], [other, other], "float32")
    assert found.verdict == "bug"
    assert "first divergence at token 1" in found.note
