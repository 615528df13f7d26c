"""The file of a sweep: a line that says what ran where, then a line for every finished cell."""

import hashlib
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from jddtree.checkpoint.open import content_key
from jddtree.command import say
from jddtree.decoder import Task
from jddtree.errors import InputError
from jddtree.sweep.grid import Cell, place

FORMAT = 2
PACKAGES = ("jax", "jaxlib", "flax")
SAME = ("format", "device", "versions", "commit", "target", "drafter", "dtype", "prompts", "settings")
"""What must not change between the runs that fill one file."""
FIGURES = {
    "name", "texts", "tokens_per_second", "interval", "row_tokens_per_second", "times_plain", "sign_test",
    "committed_per_round", "committed_by_kind", "round_ms", "host_ms_per_round", "prefill_ms",
    "compile_seconds", "stage_ms", "acceptance", "program_bytes", "peak_bytes", "percent_of_bandwidth",
    "exact", "outputs",
}  # fmt: skip
"""What readers of the file need of a cell."""
_REMOVE = "remove the line, and the command that wrote the file measures its cell again"


def environment(
    *,
    target: Path,
    drafter: Path | None,
    cache_dir: Path,
    dtype: str,
    tasks: Sequence[Task],
    settings: dict[str, Any],
    words: Sequence[str],
) -> dict[str, Any]:
    """The first line. ``settings``: all that a cell's figures depend on; ``words``: of the command line.

    Models are named by folder and known by a hash of their content, prompts by a hash of their ids.
    """
    device = jax.devices()[0]
    ids = json.dumps([[list(task.prompt), task.max_new, sorted(task.stop_ids)] for task in tasks])
    return {
        "kind": "environment",
        "format": FORMAT,
        "device": {
            "kind": device.device_kind,
            "backend": jax.default_backend(),
            "count": jax.device_count(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        },
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "commit": commit(),
        "commands": [command(words)],
        "target": {"name": target.resolve().name, "content": content_key(target, cache_dir)},
        "drafter": None
        if drafter is None
        else {"name": drafter.resolve().name, "content": content_key(drafter, cache_dir)},
        "dtype": dtype,
        "prompts": {"count": len(tasks), "content": hashlib.sha256(ids.encode()).hexdigest()[:32]},
        "settings": settings,
    }


def command(words: Sequence[str]) -> str:
    """The command line, less where files go."""
    kept, skip = [], False
    for word in words:
        if skip or word.partition("=")[0] in ("--out", "--report", "--cache-dir"):
            skip = not skip and "=" not in word
            continue
        kept.append(word)
    return shlex.join(["python", "-m", "jddtree.sweep", *kept])


def commit() -> str | None:
    """The commit that this code is, "+" where files differ from it; None outside a clone."""

    def git(*words: str) -> str:
        folder = Path(__file__).parent
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "..", "../../pallas_kernels")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


@dataclass(frozen=True)
class Sweep:
    """What a file holds: the environment, and the finished cells as `jddtree.sweep.grid.place` has them."""

    environment: dict[str, Any]
    cells: list[dict[str, Any]]


def read(path: Path) -> Sweep:
    """A sweep's file. A last line that was cut off in the middle is left out, and the user told.

    Raises:
      InputError: it cannot be read, or it is no sweep.
    """
    return _parsed(path, _whole_lines(path))


def _parsed(path: Path, lines: Sequence[str]) -> Sweep:
    cells: dict[Cell, dict[str, Any]] = {}
    about: dict[str, Any] | None = None
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except ValueError:
            raise InputError(f"{path} is no sweep: line {number} is not JSON; {_REMOVE}") from None
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if kind != ("environment" if about is None else "cell"):
            if kind == "environment":
                raise InputError(f"{where} begins another sweep: a file for each")
            raise InputError(
                f"{path} is no sweep: it must hold an environment and cells, a JSON object a line"
            )
        if about is None:
            if entry.get("format") != FORMAT:
                raise InputError(f"{path} was written in another format; measure again with another --out")
            if lost := {*SAME, "commands"} - set(entry):
                raise InputError(f"{where} is damaged (no {min(lost)}): measure again with another --out")
            about = entry
            continue
        try:
            cell = Cell(**entry["cell"])
            if not all(isinstance(part, int | float) for part in place(cell)):
                raise TypeError
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{where} is damaged (no cell of this version); {_REMOVE}") from None
        if lost := FIGURES - set(entry):
            raise InputError(f"{where} is damaged (no {min(lost)}); {_REMOVE}")
        if cell in cells:
            raise InputError(f"{where} holds {cell.name} a second time: remove one of the two lines")
        cells[cell] = entry
    if about is None:
        raise InputError(f"{path} is no sweep: it must hold an environment and cells, a JSON object a line")
    return Sweep(about, [cells[cell] for cell in sorted(cells, key=place)])


def _whole_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path} cannot be read: {reason}") from None
    *lines, rest = text.split("\n")
    if rest:
        say(f"note: {path}, line {len(lines) + 1} is cut off in the middle: left out")
    return lines


class Journal:
    """A sweep's file that grows. ``finished``: the cells that earlier runs left in it."""

    def __init__(self, path: Path, about: dict[str, Any]):
        """Open or begin the file. Raises InputError if it holds a sweep of something else."""
        self.path, self.environment = path, about
        self.finished: dict[Cell, dict[str, Any]] = {}
        if not path.exists():
            if not path.parent.is_dir():
                raise InputError(f"--out: {path} cannot be written")
        elif lines := _whole_lines(path):
            held = _parsed(path, lines)
            for key in SAME:
                ours = json.loads(json.dumps(about[key]))
                if key == "drafter" and None in (ours, held.environment[key]):
                    continue  # plain decoding alone ran without one, and does not depend on it
                if held.environment.get(key) != ours:
                    raise InputError(
                        f"{path} holds a sweep {_difference(key, held.environment, ours)}: "
                        "give another --out, or remove it"
                    )
            self.finished = {Cell(**entry["cell"]): entry for entry in held.cells}
            self.environment = about | {
                "drafter": about["drafter"] or held.environment["drafter"],
                "commands": list(dict.fromkeys(held.environment["commands"] + about["commands"])),
            }
        # Anew, so that whatever an interrupt cut off goes.
        partial = path.with_name(f"{path.name}.partial")
        lines = [self.environment, *self.finished.values()]
        partial.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        partial.replace(path)

    def add(self, entry: dict[str, Any]) -> None:
        """Append a finished cell."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self.finished[Cell(**entry["cell"])] = entry

    def sweep(self) -> Sweep:
        """All that the file holds."""
        return Sweep(self.environment, [self.finished[cell] for cell in sorted(self.finished, key=place)])


def _difference(key: str, held: dict[str, Any], ours: Any) -> str:
    """What differs, in words."""
    theirs = held.get(key)
    if key == "settings" and isinstance(theirs, dict):
        key = next(name for name in [*ours, *theirs] if ours.get(name) != theirs.get(name))
        theirs, ours = theirs.get(key), ours.get(key)
        return f"with other flags ({key} {theirs}, not {ours})"
    if key in ("target", "drafter"):
        return f"of another {key} ({theirs and theirs['name']})"
    if key == "prompts":
        return "of other prompts"
    return f"of another {key} ({theirs}, not {ours})"
