"""What a comparison records: checks with an error and a limit, gathered into cases."""

import json
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from jddtree.errors import InputError


@dataclass(frozen=True)
class Check:
    """One compared value.

    error: the largest absolute difference, or the number of unequal elements where the limit is 0; infinite
    where shapes differ.
    """

    name: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        """False for NaN too."""
        return self.error <= self.limit

    @property
    def badness(self) -> float:
        """Error in units of the limit, to find the worst of many checks."""
        return 0.0 if self.error == 0 else self.error / self.limit if self.limit else np.inf


@dataclass
class Case:
    """One golden case: the checks made on it, and what it raised, if it did."""

    name: str
    checks: list[Check] = field(default_factory=list)
    exception: str | None = None

    def equal(self, name: str, actual: Any, expected: Any) -> None:
        """Record that two arrays are equal in shape and in every element."""
        actual, expected = np.asarray(actual), np.asarray(expected)
        same_shape = actual.shape == expected.shape
        self.checks.append(Check(name, float(np.sum(actual != expected)) if same_shape else np.inf, 0.0))

    def close(self, name: str, actual: Any, expected: Any, limit: float) -> None:
        """Record the largest absolute difference of two arrays."""
        actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
        error = np.inf
        if actual.shape == expected.shape:
            error = float(np.max(np.abs(actual - expected), initial=0.0))
        self.checks.append(Check(name, error, limit))

    @property
    def passed(self) -> bool:
        """A case that checked nothing did not pass."""
        return self.exception is None and bool(self.checks) and all(check.passed for check in self.checks)

    def complaint(self) -> str:
        """Why the case failed, on one line."""
        if self.exception is not None:
            return self.exception
        if not self.checks:
            return "nothing was compared"
        failed = [check for check in self.checks if not check.passed]
        first = failed[0]
        kind = f"limit {first.limit:g}" if first.limit else "must be equal"
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return f"{first.name}: error {first.error:.3g}, {kind}{more}"


@contextmanager
def reading(path: Path) -> Generator[None]:
    """A file of reference data that cannot be read, as an InputError: nothing is known of the code then."""
    try:
        yield
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise InputError(f"{path} is damaged or cannot be read: {reason}") from error


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file. Raises InputError."""
    with reading(path), path.open("rb") as file, np.load(file) as arrays:
        return dict(arrays)


def read_facts(path: Path) -> Any:
    """The value of a JSON file. Raises InputError."""
    with reading(path):
        return json.loads(path.read_text(encoding="utf-8"))


Cases = Iterator[tuple[str, Callable[[Case], None]]]
"""Names of cases, each with what runs it and records its checks."""
