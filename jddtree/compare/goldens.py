"""Reference data through the shipped code: what a folder holds, the table, the JSON.

tests/data/goldens/README.md describes the layout. Everything runs in float32 at the highest matmul precision.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from jddtree.command import json_writer
from jddtree.compare import goldens_drafter, goldens_e2e, goldens_kimi, goldens_kimi_parts, goldens_tree
from jddtree.compare.checks import Case, Cases
from jddtree.errors import InputError, about

TOP = ("tree_build", "tree_follow", "kv_compact", "drafter_forward", "e2e", "kimi")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    category: str
    cases: tuple[Case, ...]

    @property
    def passed(self) -> bool:
        """A category that is present must run a case."""
        return bool(self.cases) and all(case.passed for case in self.cases)

    def summary(self) -> dict[str, Any]:
        """The row as JSON: counts, the worst error with its limit (0: must be equal), and what failed.

        An infinite error (shapes that differ) is null.
        """
        checks = [check for case in self.cases for check in case.checks]
        worst = max(checks, key=lambda check: (check.badness, check.limit), default=None)
        return {
            "category": self.category,
            "cases": len(self.cases),
            "passed": sum(case.passed for case in self.cases),
            "worst_error": worst.error if worst and worst.error < float("inf") else None,
            "limit": worst.limit if worst else None,
            "failures": [{"case": c.name, "reason": c.complaint()} for c in self.cases if not c.passed],
        }


def find(folder: Path) -> Iterator[tuple[str, Cases]]:
    """Every category under ``folder`` with its cases; a category that is there but empty comes with none.

    Raises InputError when there is no such folder or nothing in it is a category.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    present = [name for name in TOP if (folder / name).is_dir()]
    if not present:
        raise InputError(f"{folder} holds none of the folders {', '.join(TOP)}")
    for name in present:
        inside = folder / name
        if name in ("tree_build", "tree_follow", "kv_compact"):
            yield name, getattr(goldens_tree, name)(inside)
            continue
        rows = list(_models(inside, name))
        yield from rows or [(name, iter(()))]


def _models(inside: Path, name: str) -> Iterator[tuple[str, Cases]]:
    """A row for every model folder of a category; for ``kimi`` also one for every file of parts."""
    folders = sorted(path for path in inside.iterdir() if path.is_dir())
    if name == "drafter_forward":
        yield from ((f"{name}/{path.name}", goldens_drafter.drafter_forward(path)) for path in folders)
    elif name == "e2e":
        yield from ((f"{name}/{path.name}", goldens_e2e.generations(path)) for path in folders)
    else:
        models = [path for path in folders if (path / "config.json").is_file()]
        yield from ((f"{name}/{path.name}", goldens_kimi.model_outputs(path)) for path in models)
        for part, cases in goldens_kimi_parts.PARTS.items():
            if (inside / part).exists():
                yield f"{name}/{part.removesuffix('.safetensors')}", cases(inside / part)


def run(folder: Path) -> Iterator[Row]:
    """Run everything under ``folder``. What a case raises is its failure, and the other cases still run.

    Raises InputError when data cannot be read, or there is no device to run on.
    """
    jax.devices()  # else every case would fail for want of one
    for category, cases in find(folder):
        yield run_row(category, cases)


def run_row(category: str, cases: Cases) -> Row:
    """Run one category. Raises InputError when its data cannot be read."""
    with jax.default_matmul_precision("highest"):
        return Row(category, tuple(_run_all(cases)))


def _run_all(cases: Cases) -> Iterator[Case]:
    """Raises InputError when the list of cases cannot be read."""
    try:
        for name, body in cases:
            yield _run_case(name, body)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"its list of cases is damaged: {_one_line(error)}") from error


def _run_case(name: str, body: Callable[[Case], None]) -> Case:
    case = Case(name)
    try:
        body(case)
    except InputError:
        raise
    except Exception as error:  # A crash in the code under test is a result.
        case.exception = _one_line(error)
    return case


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def main(folder: Path, json_file: str | None) -> int:
    """Print the table, write the JSON if asked, and return 0 if all passed, else 1."""
    write_json = json_writer(json_file)
    rows = []
    with about(folder):
        for row in run(folder):
            rows.append(row)
            passed = sum(case.passed for case in row.cases)
            print(f"{row.category}: {passed} of {len(row.cases)} cases passed", file=sys.stderr, flush=True)
    passed = all(row.passed for row in rows)
    report = {"folder": str(folder), "passed": passed, "categories": [row.summary() for row in rows]}
    write_json(report)
    if json_file != "-":
        _print_table(report)
    return 0 if passed else 1


def _print_table(report: dict[str, Any]) -> None:
    table = Table("category", "cases", "passed", "worst error", "limit")
    for row in report["categories"]:
        error, limit = row["worst_error"], row["limit"]
        table.add_row(
            row["category"],
            str(row["cases"]),
            str(row["passed"]) if row["cases"] else "no case ran",
            "-" if error is None else f"{error:.2g}",
            "-" if limit is None else f"{limit:.2g}" if limit else "equal",
        )
    console = Console()
    console.width = max(console.width, 100)
    console.print(table)
    for row in report["categories"]:
        for failure in row["failures"]:
            console.print(
                f"{row['category']} {failure['case']}: {failure['reason']}", markup=False, soft_wrap=True
            )
    console.print("all passed" if report["passed"] else "FAILED")
