"""The kernel bench at toy size: times and errors where an implementation runs, a reason where it does not."""

import json

import pytest

from jddtree.errors import InputError
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
