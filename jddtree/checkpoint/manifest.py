"""The manifest of an Orbax folder: which published tensors its arrays came from, and of which model."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jddtree.checkpoint.mapping import Entry, Plan
from jddtree.checkpoint.place import writing
from jddtree.config import drafter_config, family, read_json, target_config
from jddtree.errors import InputError

NAME = "jddtree_manifest.json"
WEIGHTS = "weights"  # the Orbax checkpoint beside it
_VERSION = 2
# What a user may change in config.json: how far and how positions reach.
_FREE = ("rope", "max_position")


@dataclass(frozen=True)
class Manifest:
    """What is known of a converted checkpoint.

    Attributes:
        plan: which published tensor fills which array.
        config: the config.json that the weights were converted with.
        revision: the commit of the published folder, where the download kept it.
    """

    plan: Plan
    config: dict[str, Any]
    revision: str | None


def is_converted(folder: Path) -> bool:
    """Whether ``folder`` is in Orbax form."""
    return (folder / NAME).is_file()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into ``folder``."""
    content = {
        "version": _VERSION,
        "revision": manifest.revision,
        "config": manifest.config,
        "skipped": manifest.plan.skipped,
        "entries": [asdict(entry) for entry in manifest.plan.entries],
        "files": {
            str(file.relative_to(folder)): file.stat().st_size
            for file in sorted((folder / WEIGHTS).rglob("*"))
            if file.is_file()
        },
    }
    fresh = folder / (NAME + ".new")
    with writing(folder / NAME):
        fresh.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
        fresh.replace(folder / NAME)


def read_manifest(folder: Path) -> Manifest:
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
        found = Manifest(plan, dict(content["config"]), content["revision"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / NAME} is damaged; convert the published folder again") from error
    for name, size in files.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise InputError(f"{folder / name} is missing or truncated; convert the published folder again")
    return found


def check_config(manifest: Manifest, config: Mapping[str, Any], folder: Path) -> None:
    """Compare the config.json of an Orbax folder with the one that its weights were converted with.

    Raises:
        InputError: it describes another model; names a value that differs.
    """
    then, now = (
        drafter_config(raw) if family(raw) == "dflash" else target_config(raw)
        for raw in (manifest.config, config)
    )
    line = f"{folder / 'config.json'} is of another model than the weights beside it: "
    if type(then) is not type(now):
        raise InputError(line + f"of the family {family(config)}, not {family(manifest.config)}")
    for field in fields(then):
        old, new = getattr(then, field.name), getattr(now, field.name)
        if field.name not in _FREE and old != new:
            raise InputError(line + f"{field.name} is {new}, and was {old} when they were converted")
