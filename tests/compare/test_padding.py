"""Padding of reference cases: to the next width, and added slots see themselves alone."""

import numpy as np

from jddtree.compare.padding import WIDTH, padded, widen, widen_mask
from pallas_kernels.tree_attention.reference import unpack_mask


def test_arrays_are_filled_up_to_the_next_width():
    assert [padded(size) for size in (0, 1, WIDTH, WIDTH + 1)] == [0, WIDTH, WIDTH, 2 * WIDTH]
    array = np.arange(2 * (WIDTH + 1) * 3, dtype=np.int32).reshape(2, WIDTH + 1, 3)
    wide = widen(array, -1)
    assert wide.shape == (2, 2 * WIDTH, 3) and wide.dtype == np.int32
    np.testing.assert_array_equal(wide[:, : WIDTH + 1], array)
    assert (wide[:, WIDTH + 1 :] == -1).all()


def test_slots_that_are_added_to_a_mask_see_themselves_alone():
    visible = np.tri(5, dtype=bool)[None]
    wide = np.array(unpack_mask(widen_mask(visible), WIDTH))
    np.testing.assert_array_equal(wide[:, :5, :5], visible)
    wide[:, :5, :5] = np.eye(5, dtype=bool)
    np.testing.assert_array_equal(wide[0], np.eye(WIDTH, dtype=bool))
