"""`compare torch` as a user runs it. The runs in PyTorch need JDDTREE_TORCH_PYTHON."""

import json
import os
import sys
from pathlib import Path

import pytest

from jddtree.compare import against_torch
from jddtree.compare.__main__ import main
from jddtree.compare.against_torch import run_torch
from jddtree.errors import InputError
from tests import tiny

TORCH = os.environ.get("JDDTREE_TORCH_PYTHON")
KIMI = Path(__file__).parents[1] / "data" / "goldens" / "kimi" / "int4"
QWEN3 = tiny.TRAINED
pytestmark = pytest.mark.usefixtures("own_cache")
needs_torch = pytest.mark.skipif(TORCH is None, reason="JDDTREE_TORCH_PYTHON names no Python with torch")


def run(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    status = main(["torch", *flags])
    return status, *capsys.readouterr()


@needs_torch
def test_a_dense_pair_is_equal_at_every_stage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, errors = run(
        capsys,
        *(
            "--target",
            str(QWEN3 / "target"),
            "--drafter",
            str(QWEN3 / "drafter"),
            "--torch-python",
            str(TORCH),
        ),
        *("--prompt-ids", "[5, 6, 7, 8, 9]", "--new", "8", "--json", str(tmp_path / "found.json")),
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert (status, found["verdict"]) == (0, "equal"), errors
    names = [row["name"] for row in found["stages"]]
    assert names[0] == "embed"
    assert names[-3:] == ["tree", "verify logits", "greedy ids"]
    assert found["drafter_code"] in ("the dflash package", "PyTorch twin in this script")


@needs_torch
def test_a_kimi_target_is_equal_and_a_fault_in_it_is_located(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, tuple] = {}

    def run_once(python: str, request: dict) -> tuple:
        key = json.dumps(request)
        if key not in answers:
            answers[key] = run_torch(python, request)
        return answers[key]

    # The fault is on the other side: PyTorch would compute the same again.
    monkeypatch.setattr(against_torch, "run_torch", run_once)
    flags = "--target", str(KIMI), "--torch-python", str(TORCH), "--prompt-ids", "[5, 6, 7, 8]", "--new", "4"
    status, output, errors = run(capsys, *flags)
    assert (status, output.splitlines()[-1]) == (0, "equal"), errors
    status, output, _ = run(capsys, *flags, "--inject", "nibble-order")
    assert (status, output.splitlines()[-1]) == (1, "bug at stage 'layer 1'")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--torch-python", "/no/such/python"], "--torch-python /no/such/python cannot be run"),
        (["--torch-python", "false"], "--torch-python false must have torch, transformers and safetensors"),
        (["--torch-python", sys.executable], "--torch-python" if TORCH is None else ""),
        (["--new", "0"], "--new must be 1 or more, not 0"),
        (["--inject", "typo"], "invalid choice: 'typo'"),
        (["--drafter", "tests"], "tests is not a published folder"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    status, output, errors = run(capsys, "--target", str(QWEN3 / "target"), *flags)
    assert (status, output) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


def test_a_prompt_that_asks_for_more_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt_ids": [1, 2]}\n{"prompt_ids": [3], "temperature": 1.0}\n')
    flags = ("--prompts", str(prompts), "--torch-python", "true")
    status, output, errors = run(capsys, "--target", str(QWEN3 / "target"), *flags)
    assert (status, output) == (2, "")
    assert "line 2: a prompt is all that is compared" in errors


def test_without_torch_the_line_says_what_to_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, _, errors = run(capsys, "--target", str(QWEN3 / "target"))
    assert status == 2
    assert "this Python has no torch" in errors
    assert "--torch-python" in errors


@pytest.mark.parametrize(
    ("program", "message"),
    [("true", "ran and wrote nothing: name a Python interpreter"), ("false", "the PyTorch side failed")],
)
def test_what_is_no_python_is_one_line(program: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_torch(program, {"prompts": []})
