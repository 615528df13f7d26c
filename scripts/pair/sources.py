"""The listed packages whose text the pair learns from, and where their files lie."""

import json
from dataclasses import dataclass
from pathlib import Path

from jddtree.errors import InputError

LIST = Path(__file__).parent / "sources.json"


@dataclass(frozen=True)
class Source:
    """One package. ``reader`` says how its text is read: code, factbook, prose, wordnet, bible or novels;
    ``megabytes`` (1e6 bytes) is the most that is taken of it.
    """

    name: str
    version: str
    licence: str
    reader: str
    megabytes: float
    is_wheel: bool

    def file(self, folder: Path) -> Path | None:
        """The newest file of this package in ``folder``, or None. A Debian package of another version than
        the listed one will do: Debian keeps only the last one.
        """
        if self.is_wheel:
            pattern = f"{self.name.replace('-', '_')}-{self.version}-*.whl"
        else:
            pattern = f"{self.name}_*.deb"
        return max(folder.glob(pattern), default=None)


def listed() -> list[Source]:
    """Every source of `sources.json`: wheels, then Debian packages."""
    table = json.loads(LIST.read_text())
    return [Source(**row, is_wheel=group == "wheels") for group in ("wheels", "debs") for row in table[group]]


def present(folder: Path) -> list[tuple[Source, Path]]:
    """The sources that ``folder`` holds. InputError when there is none."""
    found = [(source, path) for source in listed() if (path := source.file(folder))]
    if not found:
        raise InputError(f"{folder} holds none of the listed packages: run scripts.fetch_sources first")
    return found
