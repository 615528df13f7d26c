"""The state of a stopped run on disk, and whether it belongs to the run that wants to go on."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jddtree.errors import InputError


def fingerprint(facts: Mapping[str, Any], *arrays: np.ndarray) -> str:
    """A hash of everything that a run's result depends on: flags (values that JSON can hold) and data."""
    total = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for array in arrays:
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def save(path: Path, mark: str, step: int, tree: Any) -> None:
    """Write a pytree of arrays after ``step`` steps of the run whose fingerprint is ``mark``.

    The file appears whole or not at all: what an earlier step wrote stays until it is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    save_file(_named(jax.device_get(tree)), partial, metadata={"fingerprint": mark, "step": str(step)})
    partial.replace(path)


def load(path: Path, mark: str, like: Any) -> tuple[int, Any] | None:
    """(steps done, the tree), shaped as ``like``; None where no run was stopped.

    Raises InputError when the file is damaged or another run's: other flags, other data.
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, "numpy") as file:
            facts = file.metadata() or {}
            if facts.get("fingerprint") != mark:
                raise InputError(
                    f"{path} belongs to a run with other flags or data: remove it, or write to another folder"
                )
            leaves = [jnp.asarray(file.get_tensor(name)) for name in _named(like)]
            return int(facts["step"]), jax.tree.unflatten(jax.tree.structure(like), leaves)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read ({error}): remove it to start again") from error


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by their path, as in ``0/model.norm.weight``."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
