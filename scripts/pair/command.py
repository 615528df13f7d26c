"""Runs a script's main function: a user's mistake becomes one line and exit code 2."""

from collections.abc import Callable
from typing import NoReturn

from jddtree.command import exit_status, leave


def run(main: Callable[[], None]) -> NoReturn:
    """Call ``main`` and end the process as the package's commands end (`jddtree.command.exit_status`)."""

    def job() -> int:
        main()
        return 0

    leave(exit_status(job, "interrupted"))
