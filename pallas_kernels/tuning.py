"""Sizes that a kernel is free to choose, a file a device: `tuned/*.json`.

A file is named after a kind of device ("NVIDIA H200": `nvidia-h200.json`) and holds {operation:
{implementation: {field: number}}}. What a device's file lacks, and what a device without a file runs with, is
in `default.json`. `scripts/tune_kernels.py` measures and writes them.

Each kernel has a frozen dataclass of its numbers. What the hardware leaves no choice about is no number here
but a rule in the kernel's own code.
"""

import json
import re
from functools import cache
from importlib import resources
from inspect import signature

from pallas_kernels import device

DEFAULT = "default.json"


def sizes[T](operation: str, implementation: str, kind: type[T]) -> T:
    """The numbers of a kernel, as its dataclass ``kind``, for the device that is traced for.

    Raises ValueError, naming file and key, where a file does not hold what ``kind`` asks for.
    """
    for name in (file_of(device.kind()), DEFAULT):
        found = entry(_text(name), name, operation, implementation, kind)
        if found is not None:
            return found
    raise ValueError(f"{DEFAULT} has no numbers for {operation}, {implementation}")


def file_of(device_kind: str) -> str:
    """The name of a device's file: "NVIDIA H200" has nvidia-h200.json."""
    return re.sub(r"[^a-z0-9]+", "-", device_kind.lower()).strip("-") + ".json"


def entry[T](text: str, name: str, operation: str, implementation: str, kind: type[T]) -> T | None:
    """One kernel's numbers out of a file's ``text``; None where the file does not mention the kernel.

    Raises ValueError, naming the file by ``name`` and the key: for text that is not JSON, and for keys that
    are missing, unknown, or no whole number above 0.
    """
    try:
        held = json.loads(text).get(operation, {}).get(implementation)
    except (AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{name} is no table of operations and implementations: {error}") from None
    if held is None:
        return None
    where = f"{name}: {operation}, {implementation}"
    if not isinstance(held, dict):
        raise ValueError(f"{where} is no table of numbers")
    known = [*signature(kind).parameters]
    for key in known:
        if key not in held:
            raise ValueError(f"{where} lacks {key!r}")
    for key, value in held.items():
        if key not in known:
            raise ValueError(f"{where} has an unknown key {key!r}; known are {', '.join(known)}")
        if type(value) is not int or value < 1:
            raise ValueError(f"{where}, {key!r} must be a whole number above 0, not {value!r}")
    return kind(**held)


@cache
def _text(name: str) -> str:
    """A file's text; of one that is not there, that of an empty table."""
    file = resources.files("pallas_kernels") / "tuned" / name
    return file.read_text(encoding="utf-8") if file.is_file() else "{}"
