"""``python -m jddtree.compare goldens DIR``: run reference data through the shipped code."""

import argparse
import sys
from pathlib import Path

from jddtree.compare import goldens
from jddtree.errors import InputError


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line. argparse exits with status 2 on a bad one."""
    parser = argparse.ArgumentParser(prog="python -m jddtree.compare", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "goldens",
        help="reference data through the shipped code, in float32",
        description="Run every category found under DIR and print a table. Exit status: 0 all passed, "
        "1 a case failed or a category that is present ran no case, 2 DIR cannot be used.",
    )
    command.add_argument("dir", metavar="DIR", type=Path, help="a folder laid out like tests/data/goldens")
    command.add_argument(
        "--json", metavar="FILE", help="also write the table as JSON; - means standard output"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = parse(arguments)
    try:
        return goldens.main(options.dir, options.json)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
