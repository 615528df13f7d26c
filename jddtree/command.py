"""What the command lines share: lines for the user, and bad input as one line with exit status 2."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from jddtree.errors import InputError


class Parser(argparse.ArgumentParser):
    """Reports a wrong flag as all bad input is reported."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see --help)")


def say(line: str) -> None:
    """A line for the user, apart from the result."""
    print(line, file=sys.stderr, flush=True)


def exit_status(job: Callable[[], int], interrupted: str) -> int:
    """Run a command: its own exit status, 2 after bad input, 130 after Ctrl-C, which says ``interrupted``."""
    try:
        return job()
    except InputError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say(interrupted)
        return 130
