"""The comparison command: every category passes on real data, and every category can fail."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.flax import load_file, save_file

from jddtree.compare import goldens
from jddtree.compare.__main__ import main
from jddtree.compare.checks import Case
from jddtree.compare.goldens_e2e import comparable_rounds

BUNDLED = Path(__file__).parents[1] / "data" / "goldens"


def test_reference_data(golden_row: tuple[Path, str]) -> None:
    folder, category = golden_row
    cases = dict(goldens.find(folder))[category]
    row = goldens.run_row(category, cases)
    if not row.passed:
        pytest.fail(json.dumps(row.summary(), indent=1))


def copy(tmp_path: Path, *parts: str) -> Path:
    """A folder with only these parts of the bundled data."""
    for part in parts:
        source, target = BUNDLED / part, tmp_path / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
    return tmp_path


def change_npz(path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    arrays = dict(np.load(path))
    np.savez(path, allow_pickle=False, **{**arrays, name: change(arrays[name]).astype(arrays[name].dtype)})


def change_safetensors(path: Path, name: str, change: Callable[[jnp.ndarray], jnp.ndarray]) -> None:
    tensors = load_file(path)
    save_file({**tensors, name: change(tensors[name]).astype(tensors[name].dtype)}, path)


def change_json(path: Path, change: Callable[[dict], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def keep_one_run(runs: dict) -> None:
    """A single plain run whose last token is wrong."""
    run = next(run for run in runs["runs"] if run["method"] == "ar")
    run["output_ids"][-1] ^= 1
    runs["runs"] = [run]


DAMAGE: dict[str, tuple[tuple[str, ...], Callable[[Path], None]]] = {
    "tree_build": (
        ("tree_build/case_004.npz", "tree_build/index.json"),
        lambda root: change_npz(root / "tree_build/case_004.npz", "next_sibling", lambda x: x + (x > 0)),
    ),
    "tree_follow": (
        ("tree_follow/case_012.npz",),
        lambda root: change_npz(root / "tree_follow/case_012.npz", "bonus_token", lambda x: x + 1),
    ),
    "kv_compact": (
        ("kv_compact/case_001.npz",),
        lambda root: change_npz(root / "kv_compact/case_001.npz", "v1_out", lambda x: np.nextafter(x, 9)),
    ),
    "drafter_forward/swa_all_noncausal": (
        ("drafter_forward/swa_all_noncausal",),
        lambda root: change_npz(
            root / "drafter_forward/swa_all_noncausal/case_00.npz", "step0_output", lambda x: x + 2e-4
        ),
    ),
    "e2e/tiny_a": (
        ("e2e/tiny_a/target", "e2e/tiny_a/drafter", "e2e/tiny_a/runs.json"),
        lambda root: change_json(root / "e2e/tiny_a/runs.json", keep_one_run),
    ),
    "kimi/int4": (
        ("kimi/int4", "kimi/int4_outputs/decode.safetensors"),
        lambda root: change_safetensors(
            root / "kimi/int4_outputs/decode.safetensors",
            "layer1.cache_krope",
            lambda x: x.at[0, 20].add(3e-4),
        ),
    ),
    "kimi/expert_dequant": (
        ("kimi/expert_dequant.safetensors",),
        lambda root: change_safetensors(
            root / "kimi/expert_dequant.safetensors",
            "layer2.expert15.down_proj.dequant_bf16",
            lambda x: x.at[3, 5].multiply(1.01),
        ),
    ),
    "kimi/rope_tables": (
        ("kimi/rope_tables.safetensors", "kimi/rope_tables.json"),
        lambda root: change_safetensors(
            root / "kimi/rope_tables.safetensors", "tiny.inv_freq", lambda x: x * (1 + 3e-7)
        ),
    ),
    "kimi/router_groups": (
        ("kimi/router_groups.safetensors", "kimi/router_groups.json"),
        lambda root: change_safetensors(
            root / "kimi/router_groups.safetensors", "topk_idx", lambda x: x.at[7, 2].add(1)
        ),
    ),
    "kimi/tokenizer_toy": (
        ("kimi/tokenizer_toy",),
        lambda root: change_json(
            root / "kimi/tokenizer_toy/cases.json", lambda cases: cases["cases"][5]["ids"].append(1)
        ),
    ),
}


def test_derived_ranks_of_a_tree_are_compared(tmp_path: Path) -> None:
    folder = copy(tmp_path, "tree_build/case_004.npz", "tree_build/index.json")
    change_npz(folder / "tree_build/case_004.npz", "node_ranks", lambda x: x + 1)
    assert main(["goldens", str(folder)]) == 1


@pytest.mark.parametrize("category", DAMAGE)
def test_a_damaged_case_fails(category: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts, damage = DAMAGE[category]
    folder, report = copy(tmp_path / "goldens", *parts), tmp_path / "report.json"
    damage(folder)
    assert main(["goldens", str(folder), "--json", str(report)]) == 1
    (row,) = json.loads(report.read_text())["categories"]
    assert row["category"] == category
    assert len(row["failures"]) == 1, row
    assert row["passed"] == row["cases"] - 1
    assert row["failures"][0]["case"] in capsys.readouterr().out


def test_json_goes_to_standard_output_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy(tmp_path, "kv_compact")
    assert main(["goldens", str(folder), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] and report["categories"][0]["limit"] == 0


def test_a_category_without_cases_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy(tmp_path, "kv_compact") / "e2e").mkdir()
    assert main(["goldens", str(tmp_path)]) == 1
    assert "no case ran" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "file"),
    [
        ("kv_compact", "case_001.npz"),
        ("e2e/tiny_a", "runs.json"),
        ("kimi/expert_dequant.safetensors", "expert_dequant.safetensors"),
    ],
)
def test_a_file_that_cannot_be_read_is_bad_input(
    part: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = copy(tmp_path, part) / part
    damaged = (damaged.parent if damaged.is_file() else damaged) / file
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert main(["goldens", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and f"error: {damaged} is damaged" in printed.err and not printed.out


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text(""), Path.mkdir])
def test_a_folder_that_holds_no_reference_data_is_bad_input(
    make: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "goldens")
    assert main(["goldens", str(tmp_path / "goldens")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and str(tmp_path) in said[0]


@pytest.mark.parametrize(
    ("actual", "expected"), [([np.nan], [1.0]), ([1.0, 2.0], [1.0]), ([1.0], [1.1]), ([np.inf], [1.0])]
)
def test_a_check_refuses_what_differs(actual: list[float], expected: list[float]) -> None:
    case = Case("case")
    case.close("value", actual, expected, 0.05)
    assert not case.passed and case.complaint().startswith("value")


def test_a_case_that_compares_nothing_fails() -> None:
    assert Case("case").complaint() == "nothing was compared"
    assert not Case("case").passed


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (3, True)),
        ({"max_new_tokens": 6}, (2, True)),
        ({"max_new_tokens": 1}, (0, True)),
        ({"block_truncated": [False, True, True]}, (1, False)),
        ({"block_truncated": [False, False, True], "max_new_tokens": 6}, (2, True)),
        ({"stop_token_ids": [7]}, (0, True)),
    ],
)
def test_rounds_of_a_run_that_must_be_reproduced(changes: dict, expected: tuple[int, bool]) -> None:
    run = {
        "output_ids": [7, 8, 9],
        "stop_token_ids": None,
        "max_new_tokens": 48,
        "acceptance_lengths": [2, 3, 4],
        "block_truncated": [False] * 3,
    }
    assert comparable_rounds({**run, **changes}) == expected
