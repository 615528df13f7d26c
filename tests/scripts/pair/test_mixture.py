"""Which answers are learnt from and which are judged by."""

import numpy as np
import pytest

from jddtree.errors import InputError
from scripts.pair.documents import Documents
from scripts.pair.mixture import held_out, judged_prompts, shares_of, thinned, with_corpus


def answers(count: int) -> Documents:
    """Three answers to every prompt."""
    return Documents.of([([i % 250, i // 250, 7, 8, 9], 3, i % 4) for i in range(count)] * 3, 8)


def prompts(documents: Documents) -> set[tuple[int, ...]]:
    return {
        tuple(documents.tokens[start : start + size].tolist())
        for start, size in zip(documents.starts(), documents.prompts, strict=True)
    }


def test_no_prompt_is_on_both_sides():
    kept, held = held_out(answers(600))
    assert len(kept.lengths) + len(held.lengths) == 1800
    assert 0.005 < len(held.lengths) / 1800 < 0.05
    assert not prompts(kept) & prompts(held)
    kept, held = held_out(answers(2))
    assert len(kept.lengths) == len(held.lengths) == 3


def test_judged_prompts_differ_and_are_of_every_kind():
    found = judged_prompts(answers(100), seed=0)
    assert len({tuple(prompt) for prompt in found}) == 16
    assert np.bincount([prompt[0] % 4 for prompt in found]).tolist() == [4, 4, 4, 4]


def test_the_corpus_gets_its_share():
    corpus = Documents.of([([1, 2, 3, 4, 5], i % 2, 0) for i in range(4000)], 8)
    mixed = with_corpus(answers(600), corpus, 0.25, seed=0)
    share = 1 - answers(600).lengths.sum() / mixed.lengths.sum()
    assert abs(share - 0.25) < 0.01
    assert np.all(mixed.prompts > 0)


def test_a_share_of_a_kind_is_kept():
    kept = thinned(answers(2000), shares_of(["explain=0.25", "chat=0"]), seed=0)
    counts = np.bincount(kept.kinds, minlength=4)
    assert counts[0] == counts[3] == 1500
    assert 300 < counts[1] < 450
    assert counts[2] == 0
    for wrong in ("tales=0.5", "story", "story=2"):
        with pytest.raises(InputError, match="KIND=SHARE"):
            shares_of([wrong])
