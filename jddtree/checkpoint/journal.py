"""Which tensors a conversion has written, with their hashes: where a continuation starts, and what a finished
Orbax folder is checked against.

The file: a JSON line that says what is converted, then a line for each tensor, "SHA-256  name" as sha256sum
prints it, of its bytes in the published form.
"""

import json
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jddtree.checkpoint.place import writing
from jddtree.errors import InputError

NAME = "jddtree_hashes.txt"


class Journal:
    """Tensors that are written, by name -> SHA-256 in hex. Threads may add at once."""

    def __init__(self, folder: Path, job: Mapping[str, Any]):
        """Read the journal in ``folder`` if it is of this ``job`` (JSON values), else remove what another
        stopped conversion left. Raises InputError when the folder holds anything else.
        """
        self._file = folder / NAME
        self._lock = threading.Lock()
        self._text = json.dumps(job) + "\n"
        try:
            text = self._file.read_bytes().decode(errors="replace")
        except OSError:
            text = ""
        if text.startswith(self._text):
            self._text = text[: text.rindex("\n") + 1]  # a line that was cut off is not counted
        elif text:
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.is_dir() and any(folder.iterdir()):
            raise InputError(
                f"{folder} is in the way and holds no stopped conversion: remove it, or name another "
                "destination"
            )
        self.hashes = _hashes(self._text)

    def start(self) -> None:
        """Make the folder and its journal; `add` may follow. Raises InputError if the disk refuses."""
        fresh = self._file.with_suffix(".new")
        with writing(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(self._text, encoding="utf-8")
            fresh.replace(self._file)

    def add(self, hashes: Mapping[str, str]) -> None:
        """Note tensors that are written, for good."""
        with self._lock:
            self.hashes |= hashes
            with writing(self._file), self._file.open("a", encoding="utf-8") as file:
                file.write("".join(f"{digest}  {name}\n" for name, digest in hashes.items()))


def read_hashes(folder: Path) -> dict[str, str]:
    """The hashes in a finished Orbax folder. Raises InputError when they are missing."""
    try:
        return _hashes((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{folder / NAME} is missing or damaged; convert the published folder again"
        ) from error


def _hashes(text: str) -> dict[str, str]:
    return {line[66:]: line[:64] for line in text.split("\n")[1:-1]}
