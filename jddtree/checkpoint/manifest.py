"""The manifest of an Orbax folder: which published tensors its arrays came from."""

import json
from dataclasses import asdict, fields
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
    }
    (folder / NAME).write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")


def read_manifest(folder: Path) -> Plan:
    """Read it back.

    Raises:
        InputError: no manifest, or not one of this version.
    """
    content = read_json(folder / NAME)
    if content.get("version") != _VERSION:
        raise InputError(
            f"{folder / NAME} is of another version of jddtree; convert the published folder again"
        )
    tuples = {"shape", "paths", "rows"}
    try:
        entries = [
            Entry(**{f.name: tuple(e[f.name]) if f.name in tuples else e[f.name] for f in fields(Entry)})
            for e in content["entries"]
        ]
        return Plan(entries, list(content["skipped"]))
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / NAME} is damaged; convert the published folder again") from error
