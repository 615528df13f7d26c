"""A progress bar in bytes, on stderr, where that is a terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

Advance = Callable[[int], None]  # takes the bytes done since its last call


@contextmanager
def bar(label: str, total: int, done: int) -> Generator[Advance]:
    """A bar of ``total`` bytes, ``done`` of which an earlier run did: they count in no rate."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=total, completed=done)
        yield lambda some: progress.advance(task, some)
