"""How far a prompt has been read, on standard error."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from jddtree.command import console, say

QUIET = 2.0
"""Seconds before the first line, where there is no terminal."""


@contextmanager
def reading(clock: Callable[[], float] = time.monotonic) -> Generator[Callable[[int, int], None]]:
    """Yields a function that takes the tokens read and how many there are. A terminal shows every call;
    elsewhere a line is written after QUIET seconds, and again whenever the time has doubled.
    """
    if sys.stderr.isatty():
        with console().status("reading the prompt") as shown:
            yield lambda done, total: shown.update(_line(done, total))
        return
    began, due = clock(), QUIET

    def tell(done: int, total: int) -> None:
        nonlocal due
        spent = clock() - began
        if done < total and spent >= due:
            say(_line(done, total))
            due = 2 * spent

    yield tell


def _line(done: int, total: int) -> str:
    return f"reading the prompt: {done:,} of {total:,} tokens"
