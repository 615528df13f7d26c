"""Tuned sizes: what ships is complete and known, a device's file goes first, and mistakes are named."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import pallas_kernels
from pallas_kernels import tuning
from pallas_kernels.dense import api as dense
from pallas_kernels.grouped_matmul import api as grouped_matmul
from pallas_kernels.top_k import api as top_k
from pallas_kernels.tree_attention import api as tree_attention
from scripts.tune_kernels import KERNELS

OPERATIONS = {
    "grouped_matmul": grouped_matmul.IMPLEMENTATIONS,
    "top_k": top_k.IMPLEMENTATIONS,
    "tree_attention": tree_attention.IMPLEMENTATIONS,
    "dense_products": dense.PRODUCTS,
    "dense_swiglu": dense.SWIGLU,
    "dense_added": dense.ADDED,
}

SHIPPED = sorted((Path(pallas_kernels.__file__).parent / "tuned").iterdir())


@dataclass(frozen=True)
class Sizes:
    rows: int
    stages: int


def of(name: str, held: dict) -> Sizes | None:
    return tuning.entry(json.dumps({"multiply": held}), name, "multiply", "fast", Sizes)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_a_shipped_file_holds_known_kernels_alone(file):
    text = file.read_text(encoding="utf-8")
    kernels = {(kernel.operation, kernel.implementation): kernel.sizes for kernel in KERNELS}
    held = {(operation, name) for operation, table in json.loads(text).items() for name in table}
    assert held == set(kernels) if file.name == tuning.DEFAULT else held <= set(kernels)
    for operation, implementation in held:
        # Of dense operations so many tokens have sizes of their own.
        assert implementation in dict(OPERATIONS[operation.rstrip("_0123456789")])
        kind = kernels[operation, implementation]
        assert isinstance(tuning.entry(text, file.name, operation, implementation, kind), kind)


def test_the_devices_file_goes_before_the_default(hopper, monkeypatch):
    files = {
        "nvidia-h200.json": {"multiply": {"fast": {"rows": 8, "stages": 3}}},
        "default.json": {"multiply": {"fast": {"rows": 1, "stages": 1}, "slow": {"rows": 2, "stages": 2}}},
    }
    monkeypatch.setattr(tuning, "_text", lambda name: json.dumps(files.get(name, {})))
    assert tuning.sizes("multiply", "fast", Sizes) == Sizes(8, 3)
    assert tuning.sizes("multiply", "slow", Sizes) == Sizes(2, 2)
    with hopper:  # what is compiled for devices that are not here
        assert tuning.sizes("multiply", "fast", Sizes) == Sizes(8, 3)
    with pytest.raises(ValueError, match=r"default\.json has no numbers for multiply, none"):
        tuning.sizes("multiply", "none", Sizes)


def test_a_device_without_a_file_has_the_defaults():
    kernel = KERNELS[0]
    text = (SHIPPED[0].parent / tuning.DEFAULT).read_text(encoding="utf-8")
    names = kernel.operation, kernel.implementation
    assert tuning.sizes(*names, kernel.sizes) == tuning.entry(text, tuning.DEFAULT, *names, kernel.sizes)


def test_files_are_named_after_devices():
    assert tuning.file_of("NVIDIA RTX PRO 6000 Blackwell") == "nvidia-rtx-pro-6000-blackwell.json"
    assert tuning.file_of("TPU v5 lite") == "tpu-v5-lite.json"


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"rows": 8}, r"a\.json: multiply, fast lacks 'stages'"),
        ({"rows": 8, "stages": 1, "tiles": 2}, r"a\.json: multiply, fast has an unknown key 'tiles'"),
        (
            {"rows": 8, "stages": 0},
            r"a\.json: multiply, fast, 'stages' must be a whole number above 0, not 0",
        ),
        ({"rows": True, "stages": 2}, r"'rows' must be a whole number above 0, not True"),
        ([8, 1], r"a\.json: multiply, fast is no table of numbers"),
    ],
)
def test_a_mistake_is_told_with_file_and_key(held, told):
    with pytest.raises(ValueError, match=told):
        of("a.json", {"fast": held})


@pytest.mark.parametrize("text", ["{", "[]", '{"multiply": 1}'])
def test_a_file_that_is_no_table_is_named(text):
    with pytest.raises(ValueError, match=r"a\.json is no table of operations and implementations"):
        tuning.entry(text, "a.json", "multiply", "fast", Sizes)
