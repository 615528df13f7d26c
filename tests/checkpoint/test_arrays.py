import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jddtree.checkpoint import arrays
from jddtree.errors import InputError


@given(st.lists(st.integers(0, 9)), st.integers(1, 12))
def test_batches_keep_order_and_limit(sizes, limit):
    groups = list(arrays.batches([(size, size) for size in sizes], limit))
    assert [size for group in groups for size in group] == sizes
    assert all(group and (len(group) == 1 or sum(group) <= limit) for group in groups)


def test_bits_survive_and_nothing_loads_before_the_end(tmp_path):
    random = np.random.default_rng(0)
    weights = tmp_path / "weights"
    first = {
        "a.zeros": np.full((40, 3), -0.0, np.float32),
        "a.0.bits": random.integers(0, 2**16, (130, 7), dtype=np.uint16).view(ml_dtypes.bfloat16),
    }
    second = {
        "a.10.words": random.integers(-(2**31), 2**31, (6, 5), dtype=np.int32),
        "b": np.ones(1, np.float16),
    }
    arrays.append(weights, first)
    arrays.append(weights, second)
    wanted = {path: np.empty_like(array) for path, array in (first | second).items()}
    with pytest.raises(InputError, match="damaged"):
        arrays.load(weights, wanted)
    arrays.finish(weights)
    assert arrays.stored(weights) == {path: array.shape for path, array in (first | second).items()}
    for path, array in arrays.load(weights, wanted).items():
        expected = (first | second)[path]
        assert (array.dtype, array.tobytes()) == (expected.dtype, expected.tobytes())
    assert arrays.load(weights, {"b": np.empty((1,), np.float16)}).keys() == {"b"}
    with pytest.raises(InputError, match="lacks a"):
        arrays.load(weights, {"a.x": np.empty((1,), np.float16)})


def test_nesting_is_reversible():
    flat = {"a.b.0": 1, "a.b.1": 2, "c": 3}
    assert arrays.nest(flat) == {"a": {"b": {"0": 1, "1": 2}}, "c": 3}
    assert arrays.flatten(arrays.nest(flat)) == flat
