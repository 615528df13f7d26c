"""The tuner at toy size: lines for present sizes and trials, and a file that loads; which trial is kept."""

import json

import pytest

from jddtree.errors import InputError
from pallas_kernels import tuning
from scripts import tune_kernels
from scripts.tune_kernels import KERNELS, Measured, ranking, write

KERNEL = next(kernel for kernel in KERNELS if kernel.name == "tree_attention triton")


def test_a_run_prints_lines_and_writes_a_file_that_loads(tmp_path, capsys):
    tune_kernels.main(["--quick", "--only", "tree_attention", "--out", str(tmp_path)])
    _, *rows = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    refused = {row["kernel"]: row["failure"] for row in rows if row.get("failure")}
    assert set(refused) == {"tree_attention mosaic_gpu", "tree_attention mosaic_tpu"}
    tried = [row for row in rows if row["kernel"] == KERNEL.name]
    assert {row["sizes"] for row in tried[:3]} == {"triton", "triton, rows 32", "triton, sharing 1"}
    assert all(row["microseconds"] > 0 and 1e-5 < row["relative_error"] < 1e-2 for row in tried[:3])
    [file] = tmp_path.iterdir()
    text = file.read_text(encoding="utf-8")
    kept = tuning.entry(text, file.name, KERNEL.operation, KERNEL.implementation, KERNEL.sizes)
    assert file.name == "cpu.json" and kept == KERNEL.sizes(**tried[-1]["sizes"])
    assert json.loads(text).keys() == {"tree_attention"}


def row(sizes: str, case: str, microseconds: float | None, error: float = 0.0) -> Measured:
    return Measured("multiply fast", sizes, case, microseconds, error, None)


def test_a_trial_must_run_be_right_and_be_slower_nowhere():
    present = [row("now", "small", 10.0, 1e-3), row("now", "large", 40.0)]
    trials = [
        *(row("better", "small", 9.0, 1e-3), row("better", "large", 36.0)),
        *(row("best", "small", 5.0, 2e-3), row("best", "large", 40.0)),
        *(row("wrong", "small", 1.0, 3e-3), row("wrong", "large", 1.0)),
        *(row("mixed", "small", 1.0, 1e-3), row("mixed", "large", 42.0)),
        *(row("refused", "small", 1.0, 1e-3), row("refused", "large", None)),
    ]
    found = ranking("now", present + trials)
    assert [name for _, name in found] == ["best", "better"]
    assert [ratio for ratio, _ in found] == pytest.approx([0.5**0.5, 0.9])
    assert ranking("now", trials) is None


def test_what_a_file_holds_of_other_kernels_stays(tmp_path):
    file = tmp_path / "new" / "chip.json"
    for kernel, numbers in ((KERNELS[0], (8, 1, 1, 1, 1)), (KERNEL, (16, 1, 16, 16, 4, 2, 1, 64))):
        write(file, kernel, kernel.sizes(*numbers))
    text = file.read_text(encoding="utf-8")
    names = KERNELS[0].operation, KERNELS[0].implementation
    assert tuning.entry(text, file.name, *names, KERNELS[0].sizes) == KERNELS[0].sizes(8, 1, 1, 1, 1)
    assert json.loads(text)["tree_attention"]["triton"]["shortest"] == 64


def test_an_unknown_name_is_told_the_names():
    with pytest.raises(
        InputError, match=r"no kernel's name holds 'nobody': they are grouped_matmul mosaic_gpu, "
    ):
        tune_kernels.main(["--only", "nobody"])
