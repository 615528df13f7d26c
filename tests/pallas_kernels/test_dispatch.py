from concurrent.futures import ThreadPoolExecutor

import pytest

from pallas_kernels import dispatch


def refuses(x, *, scale):
    raise NotImplementedError("needs another chip")


def breaks(x, *, scale):
    raise ValueError("a bug")


def doubles(x, *, scale):
    return 2 * x * scale


def triples(x, *, scale):
    return 3 * x * scale


def test_a_refusal_moves_on_to_the_next_implementation():
    order = (("fast", refuses), ("plain", doubles), ("last", triples))
    with dispatch.traced_kernels() as ran:
        assert dispatch.call("op", order, None, 5, scale=10) == 100
    assert ran == {"op": "plain"}


def test_a_named_implementation_runs_alone():
    order = (("fast", refuses), ("plain", doubles), ("last", triples))
    assert dispatch.call("op", order, "last", 5, scale=10) == 150
    with pytest.raises(NotImplementedError, match="fast: needs another chip"):
        dispatch.call("op", order, "fast", 5, scale=10)
    with pytest.raises(ValueError, match="op has no implementation named 'other'"):
        dispatch.call("op", order, "other", 5, scale=10)


def test_an_error_is_not_a_refusal():
    with pytest.raises(ValueError, match="a bug"):
        dispatch.call("op", (("fast", breaks), ("plain", doubles)), None, 5, scale=10)


def test_with_nothing_left_every_reason_is_told():
    with (
        dispatch.traced_kernels() as ran,
        pytest.raises(NotImplementedError, match=r"op takes.*fast: needs.*slow: needs"),
    ):
        dispatch.call("op", (("fast", refuses), ("slow", refuses)), None, 5, scale=10)
    assert ran == {}


def test_collections_nest_and_end():
    order = (("plain", doubles),)
    with dispatch.traced_kernels() as outer:
        dispatch.call("first", order, None, 1, scale=1)
        with dispatch.traced_kernels() as inner:
            dispatch.call("second", order, None, 1, scale=1)
    dispatch.call("third", order, None, 1, scale=1)
    assert outer == {"first": "plain", "second": "plain"}
    assert inner == {"second": "plain"}


def test_what_another_thread_traces_is_not_collected():
    order = (("plain", doubles),)
    with dispatch.traced_kernels() as ran, ThreadPoolExecutor(1) as pool:
        assert pool.submit(dispatch.call, "other", order, None, 1, scale=1).result() == 2
    assert ran == {}
