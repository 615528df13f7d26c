"""The flags of ``python -m jddtree.sweep``, checked against each other."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jddtree import devices
from jddtree.command import Parser, path
from jddtree.errors import InputError
from jddtree.load import lacks_drafter
from jddtree.prompts import Wishes
from jddtree.sampling import Sample
from jddtree.sharding import Layout
from jddtree.sweep.grid import METHODS, check_methods, groups
from jddtree.sweep.suites import SUITES

FULL: dict[str, Any] = {
    "methods": ["ar-stepwise", "ar", "chain", "tree"],
    "budgets": [8, 16, 32, 64],
    "topk": [None, 4],
    "temperatures": [0.0],
    "concurrency": [1, 4],
    "limit": None,
    "max_new_tokens": 128,
    "repetitions": 3,
}
QUICK = FULL | {
    "budgets": [8, 16],
    "topk": [None],
    "limit": 4,
    "max_new_tokens": 48,
}
"""Under three minutes on two CPU cores with the bundled pair."""


@dataclass(frozen=True)
class Settings:
    """All that a cell's figures depend on besides the cell, the models and the machine."""

    prompts: str
    limit: int | None
    max_new_tokens: int
    ignore_eos: bool
    raw: bool
    seed: int
    repetitions: int
    layout: Layout

    def wishes(self) -> Wishes:
        """What every prompt asks for."""
        return Wishes(max_new_tokens=self.max_new_tokens, ignore_eos=self.ignore_eos, raw=self.raw)

    def as_json(self) -> dict[str, Any]:
        """For the file; the user's own prompts go by their file's name, and are known by their ids."""
        named = self.prompts if self.prompts in SUITES else Path(self.prompts).name
        return asdict(self) | {"prompts": named, "layout": str(self.layout)}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags, with defaults filled in, ``settings`` and ``groups``. Raises InputError."""
    parser = Parser(
        prog="python -m jddtree.sweep",
        description="Measure plain decoding, chains and trees in one process, each with its exactness line. "
        "Finished cells are appended to a file; the same command goes on where it was interrupted, and one "
        "with another grid adds to it. "
        "Exit status: 0 done, 1 a cell's texts are not plain decoding's, 2 bad input, 130 interrupted.",
        allow_abbrev=False,
    )
    add = parser.add_argument_group("models").add_argument
    add("--target", type=path, metavar="DIR", help="as for generate (default: bundled)")
    add("--drafter", type=path, metavar="DIR", help="DFlash drafter folder (default: the target's own)")
    add("--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU, else bfloat16")
    add("--cache-dir", type=path, metavar="DIR", help="for converted weights and compiled programs")
    devices.add_layout(add)

    add = parser.add_argument_group("grid").add_argument
    add("--methods", nargs="+", metavar="METHOD", help=f"of {', '.join(METHODS)}{_default('methods')}")
    add("--budgets", nargs="+", type=int, metavar="N", help=f"nodes of a tree{_default('budgets')}")
    add("--topk", nargs="+", type=_cap, metavar="K", help=f"children of a node{_default('topk')}")
    add("--temperatures", nargs="+", type=float, metavar="T", help=f"0: greedy{_default('temperatures')}")
    add("--concurrency", nargs="+", type=int, metavar="B", help=f"rows at a time{_default('concurrency')}")

    add = parser.add_argument_group("prompts").add_argument
    add("--prompts", default="bundled", metavar="SUITE", help=f"{', '.join(SUITES)}, or a JSONL file")
    add("--limit", type=int, metavar="N", help="the first N prompts alone")
    add("--max-new-tokens", type=int, metavar="N", help=f"tokens of a text{_default('max_new_tokens')}")
    add(
        "--ignore-eos",
        action="store_true",
        help="every text runs to its full length: rows stay busy, but few drafts are right after an end",
    )
    add("--raw", action="store_true", help="encode text as it is, without the chat template")
    add("--seed", type=int, default=0, metavar="N", help="of the first sampled text (default 0)")

    add = parser.add_argument_group("measuring").add_argument
    add("--repetitions", type=int, metavar="N", help=f"of every cell{_default('repetitions')}")
    add("--no-stages", dest="stages", action="store_false", help="do not time the stages of a round apart")
    add("--bandwidth", type=float, metavar="GB/s", help="what the device can read (known for some)")
    add("--quick", action="store_true", help="other defaults: under 3 minutes on two CPU cores")

    add = parser.add_argument_group("output").add_argument
    add("--out", type=path, metavar="FILE", help="JSON lines (default sweep.jsonl)")
    add("--report", type=path, metavar="DIR", help="write report.md and its plots there")
    add("--from", dest="source", type=path, metavar="FILE", help="report on this file; measure nothing")

    flags = parser.parse_args(arguments)
    if flags.source is not None:
        _check_alone(flags, parser.parse_args([]))
    for name, value in (QUICK if flags.quick else FULL).items():
        if getattr(flags, name) is None:
            spread = name == "methods" and flags.layout.size > 1
            setattr(flags, name, [each for each in value if each != "ar-stepwise"] if spread else value)
    _check(flags)
    # Programs of one stage are those of a single device.
    flags.stages &= flags.layout.size == 1
    flags.out = flags.out or Path("sweep.jsonl")
    flags.settings = Settings(**{name: getattr(flags, name) for name in Settings.__dataclass_fields__})
    flags.groups = groups(flags.methods, flags.budgets, flags.topk, flags.temperatures, flags.concurrency)
    return flags


def _default(name: str) -> str:
    def said(values: Any) -> str:
        return " ".join("none" if value is None else f"{value}" for value in values)

    full, quick = FULL[name], QUICK[name]
    if isinstance(full, list):
        full, quick = said(full), said(quick)
    return f" (default {full})" if full == quick else f" (default {full}; quick: {quick})"


def _cap(value: str) -> int | None:
    if value != "none" and not value.isdecimal():
        raise argparse.ArgumentTypeError(f"a number or none, not {value!r}")
    return None if value == "none" else int(value)


def _check_alone(flags: argparse.Namespace, untouched: argparse.Namespace) -> None:
    """A report of a file takes no other flag. Raises InputError."""
    if flags.report is None:
        raise InputError("--from needs --report DIR to write to")
    for name, value in vars(flags).items():
        if name not in ("source", "report") and value != getattr(untouched, name):
            flag = "no-stages" if name == "stages" else name.replace("_", "-")
            raise InputError(f"--from measures nothing: leave out --{flag}")


def _check(flags: argparse.Namespace) -> None:
    if flags.source is not None:
        return
    check_methods(flags.methods, flags.budgets)
    if flags.layout.size > 1 and "ar-stepwise" in flags.methods:
        raise InputError("--methods ar-stepwise is for a single device, without --layout")
    for rows in flags.concurrency:
        if rows % flags.layout.data:
            raise InputError(
                f"--concurrency {rows} cannot be shared by the {flags.layout.data} of --layout "
                f"{flags.layout}: give multiples of {flags.layout.data}"
            )
    for name in ("budgets", "topk", "concurrency"):
        for value in getattr(flags, name):
            if value is not None and not 1 <= value < 2**31:
                raise InputError(f"--{name} must be 1 or more (and fit 32 bits), not {value}")
    for name in ("limit", "max_new_tokens", "repetitions"):
        value = getattr(flags, name)
        if value is not None and not 1 <= value < 2**31:
            raise InputError(f"--{name.replace('_', '-')} must be 1 or more (and fit 32 bits), not {value}")
    for temperature in flags.temperatures:
        Sample(temperature, seed=flags.seed)
    if flags.bandwidth is not None and not flags.bandwidth > 0:
        raise InputError(f"--bandwidth must be above 0, not {flags.bandwidth}")
    drafting = [method for method in flags.methods if not method.startswith("ar")]
    if lacks_drafter(flags.target, flags.drafter) and drafting:
        raise InputError(f"--target needs its --drafter for method {drafting[0]} (ar needs none)")
    if flags.target is None and flags.drafter is not None:
        raise InputError("--drafter needs the --target that it was trained for")
    if flags.drafter is not None and not drafting:
        raise InputError("the methods use no --drafter")
