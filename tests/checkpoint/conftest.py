"""Folders in the published form. They are read with the safetensors library, the judge of round trips."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors

from jddtree.checkpoint.published import DTYPES, begin, store

Tensors = dict[str, tuple[str, list[int], bytes]]  # name -> dtype, shape, data


def read_published(folder: Path) -> Tensors:
    """All tensors of all files."""
    return {
        name: (entry["dtype"], entry["shape"], bytes(entry["data"]))
        for file in sorted(folder.glob("*.safetensors"))
        for name, entry in safetensors.deserialize(file.read_bytes())
    }


def write_published(folder: Path, config: dict, tensors: Tensors) -> Path:
    """config.json and one model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    layout = [(name, dtype, tuple(shape)) for name, (dtype, shape, _) in tensors.items()]
    arrays = (np.frombuffer(data, DTYPES[dtype]).reshape(shape) for dtype, shape, data in tensors.values())
    store(begin(folder / "model.safetensors", layout), arrays)
    return folder


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a published folder as one file, after ``edit(config, tensors)`` changed it in place."""

    def make(source: Path, edit: Callable[[dict, Tensors], None] = lambda config, tensors: None) -> Path:
        config, tensors = json.loads((source / "config.json").read_text()), read_published(source)
        edit(config, tensors)
        return write_published(tmp_path / "edited", config, tensors)

    return make


@pytest.fixture(scope="session")
def published_tensors() -> Callable[[Path], Tensors]:
    """Reads all tensors of a published folder, with the safetensors library."""
    return read_published


@pytest.fixture(scope="session")
def kimi_folder(golden_folders: list[Path]) -> Path:
    """INT4 experts, four files with an index, nested config, vision tensors."""
    return golden_folders[0] / "kimi" / "int4"


@pytest.fixture(scope="session")
def qwen3_folder(golden_folders: list[Path]) -> Path:
    """float32, one file, untied."""
    return golden_folders[0] / "e2e" / "tiny_a" / "target"


@pytest.fixture(scope="session")
def drafter_folder(golden_folders: list[Path]) -> Path:
    """float32, one file."""
    return golden_folders[0] / "e2e" / "tiny_a" / "drafter"
