"""The manifest of an Orbax folder: which published tensors its arrays came from."""

import json
from dataclasses import asdict
from pathlib import Path

from jddtree.checkpoint.mapping import Entry, Plan
from jddtree.config import read_json
from jddtree.errors import InputError

NAME = "jddtree_manifest.json"
WEIGHTS = "weights"  # the Orbax checkpoint beside it
_VERSION = 1


def is_converted(folder: Path) -> bool:
    """Whether ``folder`` is in Orbax form."""
    return (folder / NAME).is_file()


def write_manifest(folder: Path, plan: Plan) -> None:
    """Write the plan into ``folder``."""
    content = {
        "version": _VERSION,
        "skipped": plan.skipped,
        "entries": [asdict(entry) for entry in plan.entries],
        "files": {
            str(file.relative_to(folder)): file.stat().st_size
            for file in sorted((folder / WEIGHTS).rglob("*"))
            if file.is_file()
        },
    }
    (folder / NAME).write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")


def read_manifest(folder: Path) -> Plan:
    """Read it back, and look whether the weight files are there in full.

    Raises:
        InputError: no manifest, not one of this version, or a weight file is missing or of another size.
    """
    content = read_json(folder / NAME)
    if content.get("version") != _VERSION:
        raise InputError(
            f"{folder / NAME} is of another version of jddtree; convert the published folder again"
        )
    try:
        entries = [
            Entry(
                op=e["op"],
                name=e["name"],
                count=e["count"],
                dtype=e["dtype"],
                shape=tuple(e["shape"]),
                paths=tuple(e["paths"]),
                rows=tuple(e["rows"]),
                value=e["value"],
            )
            for e in content["entries"]
        ]
        plan, files = Plan(entries, list(content["skipped"])), dict(content["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / NAME} is damaged; convert the published folder again") from error
    for name, size in files.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise InputError(f"{folder / name} is missing or truncated; convert the published folder again")
    return plan
