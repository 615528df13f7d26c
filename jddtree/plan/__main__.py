"""python -m jddtree.plan: does a layout fit a machine, and how fast could it be there."""

import argparse
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from jddtree.command import exit_status, json_writer, leave, say
from jddtree.decoder import slots_for
from jddtree.errors import InputError
from jddtree.plan import machine, report
from jddtree.plan.compiled import compiled
from jddtree.plan.flags import parse
from jddtree.plan.memory import Holdings
from jddtree.plan.pair import abstract_pair, packed_modules
from jddtree.sharding import Layout, check
from jddtree.wording import counted


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status: 0, 1 it does not fit, 2 bad input, 130 interrupted."""
    return exit_status(lambda: run(parse(arguments)), "interrupted")


def run(flags: argparse.Namespace) -> int:
    """Work out, show and write the plan. Returns the exit status. Raises InputError."""
    write_json = json_writer(flags.json)
    if flags.topology != "local":
        # Nothing runs, and looking for accelerators takes time and prints much.
        jax.config.update("jax_platforms", "cpu")
    box = machine.find(flags.topology)
    holdings, names = planned(flags, box)
    plan = report.record(holdings, box, names, flags.context, flags.budgets)
    console = Console(stderr=flags.json == "-", highlight=False, soft_wrap=True)
    for part in report.text(plan):
        console.print(part)
    programs: list[dict[str, Any]] = []
    if flags.compile:
        try:
            programs = plan["programs"] = compiled(holdings, box, flags.budgets, say)
        except InputError:
            write_json(plan)  # what needs no compiler holds without one
            raise
        for part in report.compiled_text(plan):
            console.print(part)
    write_json(plan)
    failed = any("error" in program or not report.agrees(plan, program) for program in programs)
    return 1 if failed or plan["device"]["fits"] is False else 0


def planned(flags: argparse.Namespace, box: machine.Machine) -> tuple[Holdings, tuple[str, str | None]]:
    """What each device would hold, and the models' names. Raises InputError."""
    layout = Layout.parse(flags.layout) if flags.layout else Layout(tensor=box.devices)
    if layout.size != box.devices:
        takes = counted(layout.size, "device")
        raise InputError(f"layout {layout} takes {takes}; {box.name} has {box.devices}")
    dtype = jnp.dtype(flags.dtype)
    target, drafter, drafter_name = abstract_pair(flags.target, flags.drafter, dtype)
    check(layout, target.config, packed_modules(target))
    if drafter is not None:
        check(layout, drafter.config)
    if flags.batch % layout.data:
        raise InputError(f"layout {layout}: --batch {flags.batch} cannot be shared out over dp{layout.data}")
    longest = target.config.max_position
    if flags.context > longest:
        raise InputError(f"--context {flags.context} is over the {longest} tokens that the target can read")
    slots = slots_for(flags.context)
    return Holdings(target, drafter, layout, flags.batch, slots, dtype), (str(flags.target), drafter_name)


if __name__ == "__main__":
    leave(main())
