"""jddtree.gpu_graphs: the compiler options of programs for GPUs."""

import jax
import pytest

from jddtree.gpu_graphs import COMMANDS, SCHEDULING, graph_options


def test_one_gpu_records_its_loop_and_the_compiler_knows_the_options():
    found = graph_options("gpu", 1, {"commit": "triton"})
    assert found[SCHEDULING] == "CONCURRENT"
    assert found[COMMANDS].endswith(",WHILE")
    # Names and values are checked by any compiler: another jaxlib may have renamed them.
    jax.jit(lambda x: x + 1).lower(1.0).compile(found)


@pytest.mark.parametrize(("platform", "devices"), [("cpu", 1), ("tpu", 1), ("gpu", 2)])
def test_elsewhere_the_compiler_is_left_alone(platform, devices):
    assert graph_options(platform, devices, {}) == {}


def test_the_loop_around_graphs_within_the_graph_stays_outside():
    found = graph_options("gpu", 1, {"commit": "triton", "dense_products": "mosaic_gpu"})
    assert found[SCHEDULING] == "CONCURRENT" and "WHILE" not in found[COMMANDS]


def test_flags_of_the_user_stand(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_other=1 --{SCHEDULING}=SERIALIZE")
    assert list(graph_options("gpu", 1, {})) == [COMMANDS]
