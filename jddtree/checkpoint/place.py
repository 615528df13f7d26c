"""Folders that appear whole or not at all: built beside their place as ``NAME.partial`` and renamed last."""

import fcntl
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from jddtree.errors import InputError

Say = Callable[[str], None]


@contextmanager
def sole_writer(parent: Path, say: Say) -> Generator[None]:
    """Hold ``parent`` against other conversions into it; the system lets go when a process dies."""
    parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for another conversion into {parent}.")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def require_room(parent: Path, needed: int) -> None:
    """Raises InputError when the disk of ``parent`` has less than ``needed`` bytes free."""
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise InputError(f"{parent} has {free / 1e9:.3g} GB free; {needed / 1e9:.3g} GB are needed")


@contextmanager
def writing(what: object) -> Generator[None]:
    """A file system that refuses, as an InputError about ``what``."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what} cannot be written: {error.strerror or error}") from error


def partial_of(folder: Path) -> Path:
    """Where ``folder`` is built."""
    return folder.with_name(folder.name + ".partial")


def put_in_place(folder: Path) -> None:
    """Rename the partial folder to ``folder``; what was there before goes after the new one is in place."""
    # A name that nobody else gives: what an earlier process left there when it was killed is removed.
    old = folder.with_name(folder.name + ".partial.old")
    if old.exists():
        shutil.rmtree(old)
    if folder.exists():
        folder.rename(old)
    partial_of(folder).rename(folder)
    if old.exists():
        shutil.rmtree(old)
