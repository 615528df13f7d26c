"""The kernel bench at toy size: times and errors where an implementation runs, a reason where it does not."""

import json

import jax
import jax.numpy as jnp
import pytest

from jddtree.errors import InputError
from pallas_kernels.grouped_matmul import cases
from scripts import bench_kernels


def test_a_line_for_every_implementation(capsys):
    bench_kernels.main(["--quick", "--only", "bundled drafter"])
    about, *rows = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{"))
    assert about["bytes_per_second"] > 0 and about["operations_per_second"] > 0
    *kernels, plain = rows
    assert [row["implementation"] for row in rows] == ["mosaic_tpu", "mosaic_gpu", "triton", "xla"]
    reasons = ("a kernel for TPUs", "takes latents", "a kernel for GPUs")
    for row, reason in zip(kernels, reasons, strict=True):
        assert reason in row["failure"] and row["microseconds"] is None
    assert plain["microseconds"] > 0 and plain["failure"] is None
    # bfloat16 against float32: neither equal nor far.
    assert 1e-5 < plain["relative_error"] < 1e-2


def test_an_unknown_name_is_told_the_names():
    with pytest.raises(
        InputError, match=r"no case's name holds 'nothing': they are bundled target, .*empty loop"
    ):
        bench_kernels.main(["--only", "nothing"])
    with pytest.raises(InputError, match="no case has an implementation named 'nobody'"):
        bench_kernels.main(["--quick", "--only", "empty", "--implementation", "nobody"])


def test_the_experts_products_alone_are_calls_of_the_kernel():
    case = bench_kernels.small(next(case for case in cases.TIMED if case.name == "K2.6 tp8, 9 tokens"))
    _, tiled = bench_kernels.random_experts(case.experts, case.inner, case.hidden)
    ids = jnp.zeros((case.tokens, case.chosen), jnp.int32)
    x = jnp.ones((case.tokens, case.hidden), jnp.bfloat16)
    taken = jax.eval_shape(bench_kernels.products(case), ids, x, None, tiled)
    assert taken.shape == (1, 1)
