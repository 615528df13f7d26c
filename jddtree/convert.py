"""python -m jddtree.convert SRC DST: a published checkpoint folder into Orbax form or back, or a GGUF file.

Quantised weights of a GGUF file become float32, as its own format defines their values; bfloat16 would round
them. F32, F16 and BF16 weights keep their dtype.
"""

import argparse
from collections.abc import Sequence

from jddtree.checkpoint.convert import convert
from jddtree.command import Parser, exit_status, leave, path
from jddtree.errors import about


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status: 0, 2 bad input or a full disk, 130 interrupted."""
    parser = Parser(
        prog="python -m jddtree.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", metavar="SRC", type=path, help="a published or an Orbax checkpoint folder, or a GGUF file"
    )
    parser.add_argument("destination", metavar="DST", type=path, help="the folder to make")
    parser.add_argument(
        "--to", choices=("orbax", "hf"), help="default: the form that SRC is not in; hf for GGUF"
    )
    parser.add_argument("--force", action="store_true", help="replace a checkpoint that is in DST")

    def job() -> int:
        flags = parser.parse_args(arguments)
        with about(flags.source):
            convert(flags.source, flags.destination, flags.to, flags.force, print)
        return 0

    return exit_status(job, "interrupted; the same command continues a conversion to Orbax")


if __name__ == "__main__":
    leave(main())
