"""Texts that hold the mask token teach nothing."""

import numpy as np
import pytest

from jddtree.errors import InputError
from scripts.pair.documents import Documents
from scripts.pair.mask import without

TEXTS = Documents.of([([1, 2, 9], 1, 0), ([3, 4], 0, 1), ([9], 0, 2), ([5, 6, 7, 8], 2, 3), ([1], 0, 0)], 10)


def test_texts_with_the_mask_token_are_left_out() -> None:
    said: list[str] = []
    kept = without(TEXTS, 9, said.append)
    np.testing.assert_array_equal(kept.tokens, [3, 4, 5, 6, 7, 8, 1])
    np.testing.assert_array_equal(kept.kinds, [1, 3, 0])
    assert said == ["2 of 5 texts hold the mask token 9 and are left out"]


def test_texts_without_it_stay_as_they_are() -> None:
    assert without(TEXTS, 10, pytest.fail) is TEXTS


def test_half_of_the_texts_are_too_many() -> None:
    with pytest.raises(InputError, match="token 9 is in the training text"):
        without(TEXTS.take(np.array([0, 1])), 9, pytest.fail)
