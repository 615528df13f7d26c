"""Runs a script's main function: a user's mistake becomes one line and exit code 2."""

import sys
from collections.abc import Callable

from jddtree.errors import InputError


def run(main: Callable[[], None]) -> None:
    """Call ``main``; an InputError is printed and exits with code 2, Ctrl-C with 130."""
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
