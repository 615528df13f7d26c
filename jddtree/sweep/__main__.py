"""python -m jddtree.sweep: speed over methods, budgets, caps, temperatures and concurrency."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from jddtree.command import exit_status, leave, say
from jddtree.engine import Engine, default_cache_dir
from jddtree.errors import InputError
from jddtree.load import pair_places
from jddtree.sampling import Sample
from jddtree.sweep import journal, report
from jddtree.sweep.figures import record
from jddtree.sweep.flags import Settings, parse
from jddtree.sweep.grid import Group
from jddtree.sweep.journal import Journal, Sweep
from jddtree.sweep.measure import compiled, keys, measure, steps
from jddtree.sweep.suites import read_suite, tasks_of
from jddtree.sweep.traffic import READABLE


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status: 0, 1 a cell is inexact, 2 bad input, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return exit_status(
        lambda: run(parse(words), words), "interrupted: the same command goes on after the finished cells"
    )


def run(flags: argparse.Namespace, words: Sequence[str]) -> int:
    """Measure what is missing from the file, show the table, write the report. Raises InputError."""
    if flags.report is not None:
        report.require_matplotlib()
        if flags.report.exists() and not flags.report.is_dir():
            raise InputError(f"--report {flags.report} is a file: name a folder")
    if flags.source is not None:
        sweep = journal.read(flags.source)
        if not sweep.cells:
            raise InputError(f"{flags.source} holds no finished cell to report on")
    else:
        sweep = sweep_of(flags, words)
    show(sweep)
    if flags.report is not None:
        say(f"report: {report.write(sweep, flags.report)}")
    return 1 if any(entry["exact"]["bugs"] for entry in sweep.cells) else 0


def sweep_of(flags: argparse.Namespace, words: Sequence[str]) -> Sweep:
    """Run the cells that the file does not hold yet. Raises InputError."""
    settings: Settings = flags.settings
    problems = read_suite(settings.prompts, settings.wishes(), settings.limit)
    for temperature in flags.temperatures:
        Sample(temperature, seed=settings.seed + len(problems) - 1)
    drafting = any(not method.startswith("ar") for method in flags.methods)
    target, drafter = pair_places(flags.target, flags.drafter)
    if drafting and drafter is None:
        raise InputError(f"there is no drafter for {flags.target}: give --drafter, or --methods ar")
    cache_dir = flags.cache_dir or default_cache_dir()
    engine = Engine.load(
        target,
        drafter if drafting else None,
        method="tree" if drafting else "ar",
        dtype=flags.dtype,
        cache_dir=cache_dir,
        layout=settings.layout,
        say=say,
    )
    tasks = tasks_of(problems, engine)
    held = Journal(
        flags.out,
        journal.environment(
            target=target,
            drafter=drafter if drafting else None,
            cache_dir=cache_dir,
            dtype=engine.pair.dtype,
            tasks=tasks,
            settings=settings.as_json(),
            words=words,
        ),
    )
    asked = {cell for group in flags.groups for cell in group.cells}
    if held.finished:
        done = len(asked & set(held.finished))
        more = f", and {len(held.finished) - done} others" if len(held.finished) > done else ""
        say(f"{flags.out} holds {done} of {len(asked)} cells{more}: going on")
    for rows in flags.concurrency:
        if rows > len(tasks):
            say(f"note: {rows} at a time are more than the {len(tasks)} prompts, which are repeated")
    if "ar-stepwise" in flags.methods and any(flags.temperatures):
        say("note: ar-stepwise is greedy: there is none at temperatures above 0")
    # What is known is a single device's, and the bytes that must be read are the whole pair's.
    known = READABLE.get(jax.devices()[0].device_kind) if settings.layout.size == 1 else None
    bandwidth = flags.bandwidth or known
    kinds = [problem.kind for problem in problems]
    missing = [group for group in flags.groups if set(group.cells) - set(held.finished)]
    # The baseline runs again beside what is missing.
    missing = [
        Group(
            group.temperature,
            group.concurrency,
            (group.cells[0], *(cell for cell in group.cells[1:] if cell not in held.finished)),
        )
        for group in missing
    ]
    total = len(keys(engine.pair.block_size, missing)) + sum(
        steps(group, len(tasks), settings.repetitions) for group in missing
    )
    with progress(visible=bool(missing)) as shown:
        bar = shown.add_task("compiling", total=total)

        def advance(what: str) -> None:
            shown.update(bar, advance=1, description=what)

        programs = compiled(engine, tasks, missing, seed=settings.seed, stages=flags.stages, advance=advance)
        for group in missing:
            plain = None
            for done in measure(
                engine,
                tasks,
                group,
                programs,
                repetitions=settings.repetitions,
                seed=settings.seed,
                advance=advance,
            ):
                plain = plain or done
                if done.cell not in held.finished:
                    entry = record(done, plain, engine.pair, kinds, bandwidth)
                    held.add(entry)
                    shown.console.print(line(entry), highlight=False, soft_wrap=True)
        shown.update(bar, completed=total)
    return held.sweep()


def progress(*, visible: bool) -> Progress:
    """A bar on standard error, with the time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not visible,
    )


def line(entry: dict[str, Any]) -> str:
    """A finished cell in one line."""
    cell = entry["cell"]
    return (
        f"temperature {cell['temperature']:g}, {cell['concurrency']} at a time, {entry['name']}: "
        f"{entry['tokens_per_second']:.1f} tokens/s, {report.times(entry)}; {report.exact(entry)}"
    )


def show(sweep: Sweep) -> None:
    """The table, on standard output."""
    about = sweep.environment
    table = Table(title=f"{about['device']['kind']}, {about['dtype']}, jax {about['versions']['jax']}")
    for title in report.COLUMNS:
        table.add_column(title, justify="left" if title == "method" else "right")
    group = None
    for entry in sweep.cells:
        cell = entry["cell"]
        if group not in (None, (cell["temperature"], cell["concurrency"])):
            table.add_section()
        group = cell["temperature"], cell["concurrency"]
        table.add_row(*report.row(entry))
    console = Console()
    console.width = max(console.width, 150)
    console.print(table)


if __name__ == "__main__":
    leave(main())
