"""The flags of ``python -m jddtree.plan``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jddtree.command import Parser, path
from jddtree.errors import InputError
from jddtree.load import SMOLLM2
from jddtree.plan.machine import EXAMPLES
from jddtree.plan.pair import KIMI, KIMI_DRAFTER, NO_DRAFTER

DESCRIPTION = """\
Say whether a target and its drafter fit a machine in a layout, and how fast a round could be there at
best: the time that reading the weights and caches takes. Nothing is downloaded, and no accelerator is
needed. Exit status: 0 it fits, 1 it does not, 2 bad input.
"""

EXAMPLE = """\
for example, Kimi K2.6 with its drafter on a box of eight GPUs, and compiled for 16 TPUs that are not here:

  python -m jddtree.plan --layout ep4xtp2 --topology 8x-rtx-pro-6000 --budgets 8 16 32
  pip install 'jax[tpu]'
  python -m jddtree.plan --topology v5p:2x2x4 --context 16384 --compile
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags. Raises InputError."""
    parser = Parser(
        prog="python -m jddtree.plan",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--target",
        type=path,
        default=Path(KIMI),
        metavar="DIR",
        help=f"a folder with the target's config.json, a GGUF file, {SMOLLM2}, or {KIMI} (default)",
    )
    add(
        "--drafter",
        type=path,
        metavar="DIR",
        help=f"a folder with the drafter's config.json, "
        f"{KIMI_DRAFTER} (default for {KIMI}), or {NO_DRAFTER} (default for a folder); {SMOLLM2} has its own",
    )
    add(
        "--layout",
        metavar="L",
        help="how models are cut over devices: tp8 (every matrix), ep8 (whole experts), pp8 (layers), dp8 "
        "(copies), or a product, as ep4xtp2 (default: tp over all devices)",
    )
    add("--topology", default="local", metavar="NAME", help=f"the machine: {EXAMPLES} (default local)")
    add("--batch", type=int, default=1, metavar="B", help="texts decoded at a time (default 1)")
    add("--context", type=int, default=4096, metavar="S", help="tokens of each text (default 4096)")
    budgets = [8, 16, 32, 64]
    add("--budgets", type=int, nargs="+", default=budgets, metavar="N", help="nodes of a tree (8 16 32 64)")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="default: bfloat16")
    add(
        "--compile",
        action="store_true",
        help="compile a prefill and every budget's round for that machine; show what the compiler says",
    )
    add("--json", metavar="FILE", help="write all figures, in bytes and seconds; - for standard output")
    flags = parser.parse_args(arguments)
    for name in ("batch", "context"):
        if getattr(flags, name) < 1:
            raise InputError(f"--{name} must be 1 or more, not {getattr(flags, name)}")
    for budget in flags.budgets:
        if budget < 1:
            raise InputError(f"--budgets must be 1 or more, not {budget}")
    if flags.json == "":
        raise InputError("--json needs a file name, or - for standard output")
    flags.budgets = sorted(set(flags.budgets))
    return flags
