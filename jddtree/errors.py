"""The one error type that a command line turns into a single line and exit status 2."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class InputError(ValueError):
    """A file, flag, prompt or checkpoint that cannot be used. The message is one line for the user."""


@contextmanager
def about(place: Path) -> Generator[None]:
    """Put ``place`` in front of an InputError that does not name it."""
    try:
        yield
    except InputError as error:
        if str(place) in str(error):
            raise
        raise InputError(f"{place}: {error}") from None
