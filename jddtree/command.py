"""What the command lines share: lines for the user, and how commands end."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any, NoReturn

from rich.console import Console

from jddtree.devices import missing, speaks
from jddtree.errors import InputError

PATIENCE = 20.0
"""Seconds after which work that shows nothing is told of."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong flag as all bad input is reported."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see --help)")


def say(line: str) -> None:
    """A line for the user, apart from the result."""
    if speaks():
        print(line, file=sys.stderr, flush=True)


def console() -> Console:
    """For what moves while the user waits."""
    return Console(stderr=True, quiet=not speaks())


@contextmanager
def waiting(what: str) -> Generator[None, None, None]:
    """Show that ``what`` is being done: as it goes on a terminal, else in a line once it takes long."""
    shown = console()
    if shown.is_terminal:
        with shown.status(what):
            yield
        return
    timer = Timer(PATIENCE, say, [f"still {what} after {PATIENCE:.0f} s"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def exit_status(job: Callable[[], int], interrupted: str) -> int:
    """Run a command. Returns its own exit status; 2 after bad input, a file system that refuses or
    without devices; 130 after
    Ctrl-C, which says ``interrupted``; 141 when the reader of the output has gone, as shells have it.
    """
    try:
        return job()
    except BrokenPipeError:
        return 141
    except InputError as error:
        _complain(str(error))
        return 2
    except OSError as error:
        _complain(f"{error.filename or 'input or output'}: {error.strerror or error}")
        return 2
    except KeyboardInterrupt:
        say(interrupted)
        return 130
    except Exception:
        # Asked afterwards: looking for devices takes seconds, and must not come before processes are joined.
        reason = missing()
        if reason is None:
            raise
        _complain(reason)
        return 2


def _complain(reason: str) -> None:
    """Of any process: what is wrong may be so with its host alone."""
    print(f"error: {reason}", file=sys.stderr, flush=True)


def leave(status: int) -> NoReturn:
    """End the process. After an interrupt or a closed pipe nothing is waited for: device threads may still be
    at work, and tearing them down aborts.
    """
    if status > 128:
        with suppress(OSError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def path(value: str) -> Path:
    """A file or folder given to a flag."""
    if not value:
        raise argparse.ArgumentTypeError("an empty name is no file or folder")
    return Path(value)


def json_writer(destination: str | None) -> Callable[[dict[str, Any]], None]:
    """How to write the record. Raises InputError at once if the file cannot be written at the end."""
    if destination is None or not speaks():
        return lambda record: None
    if destination == "-":
        return lambda record: print(json.dumps(record))
    path = Path(destination)
    place = path if path.exists() else path.parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise InputError(f"--json: {path} cannot be written")

    def write(record: dict[str, Any]) -> None:
        path.write_text(json.dumps(record) + "\n", encoding="utf-8")

    return write
