"""``python -m jddtree.compare runs``: two saved generations, or two sweeps, side by side."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jddtree.errors import InputError
from jddtree.exactness import Exactness, compare
from jddtree.sweep import journal, report
from jddtree.sweep.journal import Sweep
from jddtree.wording import counted

Record = dict[str, Any]
NEEDED = (
    "prompt_ids", "output_ids", "margins", "policy", "method", "dtype", "finish_reason",
    "committed_per_round", "tokens_per_second",
)  # fmt: skip
"""What is read of a text of generate."""


def add_flags(command: argparse.ArgumentParser, path: Any) -> None:
    """The flags of this comparison; ``path`` reads a file's name."""
    command.add_argument("a", type=path, metavar="A", help="JSON of generate, or the file of a sweep")
    command.add_argument("b", type=path, metavar="B", help="another of the same kind")


def main(flags: argparse.Namespace) -> int:
    """Compare, print, and return 0, or 1 for a bug. Raises InputError."""
    first, second = _read(flags.a), _read(flags.b)
    if isinstance(first, Sweep) and isinstance(second, Sweep):
        checks, dtype = _sweeps(first, second, flags), _looser(first.environment, second.environment)
    elif isinstance(first, list) and isinstance(second, list):
        checks, dtype = _generations(first, second, flags), _looser(*first, *second)
    else:
        raise InputError(f"one of {flags.a} and {flags.b} is a sweep, the other is not")
    said = verdict(checks, dtype)
    print(said)
    return 1 if said.startswith("bug") else 0


def verdict(checks: Sequence[Exactness], dtype: str) -> str:
    """equal, tie within rounding, or bug, over all texts."""
    differing = [check for check in checks if not check.equal]
    bugs = [check for check in differing if not check.is_tie(dtype)]
    if bugs:
        return f"bug: {len(bugs)} of {len(checks)} texts differ by more than rounding"
    if differing:
        return f"tie within rounding: {len(differing)} of {len(checks)} texts differ"
    return "equal"


def _read(path: Path) -> list[Record] | Sweep:
    """A generation's records, or a sweep. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path} cannot be read: {reason}") from None
    try:
        whole = json.loads(text)
    except ValueError:
        try:
            return journal.read(path)
        except InputError as error:
            raise InputError(f"{path} is neither generate's JSON nor a sweep: {error}") from None
    if isinstance(whole, dict) and whole.get("kind") == "environment":
        raise InputError(f"{path} is a sweep without a finished cell")
    records = whole.get("outputs", [whole]) if isinstance(whole, dict) else None
    if not isinstance(records, list) or not all(
        isinstance(r, dict) and set(NEEDED) <= set(r) for r in records
    ):
        raise InputError(f"{path} is neither the JSON of this version's generate nor a sweep")
    if not records:
        raise InputError(f"{path} holds no text")
    return records


def _looser(*records: Record) -> str:
    """The dtype whose rounding excuses more."""
    return "bfloat16" if any(record["dtype"] == "bfloat16" for record in records) else "float32"


def _generations(first: list[Record], second: list[Record], flags: argparse.Namespace) -> list[Exactness]:
    if len(first) != len(second):
        raise InputError(f"{flags.a} holds {counted(len(first), 'text')}, {flags.b} {len(second)}")
    dtype, checks = _looser(*first, *second), []
    for number, (a, b) in enumerate(zip(first, second, strict=True), 1):
        for key, what in (("prompt_ids", "prompt"), ("policy", "policy")):
            if a[key] != b[key]:
                raise InputError(f"text {number}: the {what} is not the same in both files")
        short, long = sorted((a, b), key=lambda record: len(record["output_ids"]))
        ids, more = short["output_ids"], long["output_ids"]
        if short["finish_reason"] in ("length", "interrupted") and ids != more and ids == more[: len(ids)]:
            raise InputError(
                f"text {number} was cut after {len(ids)} tokens in one file and {len(more)} in the other: "
                "write both with the same --max-new-tokens, to the end"
            )
        # Plain decoding is the truth where there is one; else the second file is.
        ours, plain, name = (b, a, flags.a) if a["method"] == "ar" else (a, b, flags.b)
        check = compare(ours["output_ids"], plain["output_ids"], plain["margins"])
        checks.append(check)
        print(f"text {number}: {check.verdict(dtype, f'{plain["method"]} of {name}')}")
        figures = [f"{_figure(x['committed_per_round'])}, {_figure(x['tokens_per_second'])}" for x in (a, b)]
        print(f"  committed a round, tokens/s: {figures[0]} and {figures[1]}")
    return checks


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _sweeps(first: Sweep, second: Sweep, flags: argparse.Namespace) -> list[Exactness]:
    """Print the cells that both hold; plain decoding's texts are compared, which the others are held to in
    their own file.
    """
    one, other = first.environment, second.environment
    for key in ("target", "prompts"):
        if one[key]["content"] != other[key]["content"]:
            raise InputError(f"{flags.a} and {flags.b} are sweeps of different {key.removesuffix('s')}s")
    theirs = {json.dumps(entry["cell"]): entry for entry in second.cells}
    common = [entry for entry in first.cells if json.dumps(entry["cell"]) in theirs]
    seeds = [about["settings"]["seed"] for about in (one, other)]
    if seeds[0] != seeds[1] and any(entry["cell"]["temperature"] for entry in common):
        raise InputError(
            f"{flags.a} is sampled with --seed {seeds[0]}, {flags.b} with {seeds[1]}: their texts must differ"
        )
    dtype, checks = _looser(one, other), []
    table = Table()
    titles = ("cell", "A tokens/s", "B tokens/s", "B / A", "committed A", "B", "exact A", "exact B")
    for title in titles:
        table.add_column(title, justify="left" if title == "cell" else "right")
    for a in common:
        b = theirs[json.dumps(a["cell"])]
        where = f"{a['name']}, T {a['cell']['temperature']:g}, {a['cell']['concurrency']} at a time"
        sound = report.is_exact(a) and report.is_exact(b) and a["tokens_per_second"]
        speeds = [
            f"{x['tokens_per_second']:.1f} [{x['interval'][0]:.1f}, {x['interval'][1]:.1f}]"
            if x["interval"]
            else "-"
            for x in (a, b)
        ]
        table.add_row(
            where,
            *speeds,
            f"{b['tokens_per_second'] / a['tokens_per_second']:.2f}" if sound else "INEXACT",
            *(_figure(x["committed_per_round"]) for x in (a, b)),
            *(report.exact(x) for x in (a, b)),
        )
        if a["outputs"] and b["outputs"]:
            for number, (ours, plain) in enumerate(zip(a["outputs"], b["outputs"], strict=True), 1):
                check = compare(ours["output_ids"], plain["output_ids"], plain["margins"])
                checks.append(check)
                if not check.equal:
                    print(f"{where}, text {number}: {check.verdict(dtype, str(flags.b))}")
        # A cell that failed in its own run stays a bug here.
        checks += [Exactness(True, False)] * (a["exact"]["bugs"] + b["exact"]["bugs"])
    if not table.row_count:
        raise InputError(f"{flags.a} and {flags.b} have no cell in common")
    console = Console()
    console.width = max(console.width, 150)
    console.print(table)
    return checks
