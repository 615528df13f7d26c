"""A plan's figures: as one record for JSON, and as text."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table

from jddtree.plan.machine import Machine
from jddtree.plan.memory import Holdings, Reads
from jddtree.sharding import Layout

SCRATCH = "scratch, estimated"

TOLERANCE = 0.02
"""How far the compiler's bytes may be from the plan's."""

GPU_SHARE = 0.75
"""Of a GPU's memory, what JAX takes by default."""


def record(
    holdings: Holdings, machine: Machine, names: tuple[str, str | None], context: int, budgets: list[int]
) -> dict[str, Any]:
    """All figures, in bytes and seconds; None where the machine's memory or bandwidth is not known.

    names: of the target and the drafter. context: tokens that each row has. A plain step is a pass of one
    slot; a round drafts once and verifies budget + 1 slots.
    """
    scratch = holdings.scratch(max(budgets))
    held = holdings.by_class()
    total = sum(held.values()) + scratch
    evenly = holdings.on(Layout())

    def passed(reads: Reads, even: Reads) -> dict[str, Any]:
        return {
            **asdict(reads),
            "total": reads.total,
            "seconds": machine.bandwidth and reads.total / machine.bandwidth,
            "weights_seconds": machine.bandwidth and reads.weights / machine.bandwidth,
            "evenly_seconds": machine.bandwidth
            and even.total * holdings.layout.data / machine.devices / machine.bandwidth,
        }

    def verified(width: int) -> dict[str, Any]:
        return {
            "slots": width,
            "distinct_experts": holdings.distinct(width),
            **passed(holdings.verify(width, context), evenly.verify(width, context)),
            "sums": holdings.sums(width),
        }

    plain = verified(1)
    drafted = passed(holdings.draft(context), evenly.draft(context)) if holdings.drafter else None
    rounds = []
    for budget in budgets:
        pass_ = verified(budget + 1)
        read = pass_["total"] + (drafted["total"] if drafted else 0)
        rounds.append(
            {
                "budget": budget,
                "verify": pass_,
                "seconds": machine.bandwidth and read / machine.bandwidth,
                "tokens_to_beat_plain": read / plain["total"],
            }
        )
    return {
        "target": names[0],
        "drafter": names[1],
        "layout": str(holdings.layout),
        "topology": machine.name,
        "platform": machine.platform,
        "devices": machine.devices,
        "dtype": str(holdings.dtype),
        "batch": holdings.batch,
        "context": context,
        "cache_slots": holdings.slots,
        "device": {
            "memory": machine.memory,
            "bandwidth": machine.bandwidth,
            "bytes": held | {SCRATCH: scratch},
            "total": total,
            "to_spare": None if machine.memory is None else machine.memory - total,
            "fits": None if machine.memory is None else machine.memory >= total,
        },
        "plain": plain,
        "draft": drafted,
        "rounds": rounds,
    }


def text(plan: dict[str, Any]) -> Iterator[str | Table]:
    """The record for a reader. GB are 1e9 bytes, MB 1e6."""
    count, batch = plan["devices"], plan["batch"]
    drafter = f" with {plan['drafter']}" if plan["drafter"] else ", no drafter"
    devices = f"{count} devices" if count > 1 else "1 device"
    yield f"{plan['target']}{drafter}; layout {plan['layout']} on {plan['topology']} ({devices})"
    yield (
        f"{batch} {'texts' if batch > 1 else 'text'} of {plan['context']:,} tokens, {plan['cache_slots']:,} "
        f"cache slots each; {plan['dtype']} where weights are not INT4"
    )
    yield ""
    device = plan["device"]
    unit, size = _unit(device["total"])
    table = _table("on each device", unit)
    for kind, each in device["bytes"].items():
        table.add_row(kind, size(each))
    table.add_row("total", size(device["total"]))
    yield table
    yield _verdict(plan)
    yield ""
    yield from _times(plan, unit, size)


def agrees(plan: dict[str, Any], program: dict[str, Any]) -> bool:
    """Whether a round's arguments are what the plan says, within 2 %. TPUs pad small arrays, so there they
    may be more. A prefill leaves some weights out.
    """
    if program["program"].startswith("prefill"):
        return True
    over = program["arguments"] / _planned(plan) - 1
    return over >= -TOLERANCE and (over <= TOLERANCE or plan["platform"] == "tpu")


def _planned(plan: dict[str, Any]) -> int:
    """Bytes of weights, caches and state."""
    return plan["device"]["total"] - plan["device"]["bytes"][SCRATCH]


def compiled_text(plan: dict[str, Any]) -> Iterator[str | Table]:
    """What the compiler says of the plan's ``programs``."""
    device = plan["device"]
    unit, size = _unit(device["total"])
    yield ""
    yield f"What the compiler says, {unit} a device:"
    table = _table("program", "compiled in s", "arguments", "results", "temporaries", "total")
    fine = [program for program in plan["programs"] if "error" not in program]
    for each in fine:
        parts = (each["arguments"], each["results"], each["temporaries"], each["total"])
        table.add_row(each["program"], f"{each['seconds']:.1f}", *map(size, parts))
    yield table
    for each in plan["programs"]:
        name = each["program"]
        if "error" in each:
            yield f"{name}: does not fit: {each['error']}"
            continue
        for operation, found in each["collectives"].items():
            yield f"{name}: {found['count']} {operation}, {found['bytes'] / 1e6:.3f} MB in all"
        if not agrees(plan, each):
            yield f"{name}: its arguments are not the {size(_planned(plan))} {unit} of the plan: one is wrong"
        if device["memory"] is not None and each["total"] > device["memory"]:
            yield f"{name}: does not fit: {size(each['total'] - device['memory'])} {unit} too much"


def _verdict(plan: dict[str, Any]) -> str:
    device, size = plan["device"], _in(1e9)
    if device["fits"] is None:
        return "How much memory a device has is not known here."
    memory, spare = size(device["memory"]), size(abs(device["to_spare"]))
    if not device["fits"]:
        return f"It does not fit: {spare} GB too much for {memory} GB."
    line = f"It fits: {spare} of {memory} GB are left ({device['to_spare'] / device['memory']:.0%})."
    if plan["platform"] == "cuda" and device["total"] > GPU_SHARE * device["memory"]:
        line += " JAX takes 75 % of a GPU unless told to take more: XLA_PYTHON_CLIENT_MEM_FRACTION=0.95"
    return line


def _times(plan: dict[str, Any], unit: str, size: Callable[[float], str]) -> Iterator[str | Table]:
    bandwidth = plan["device"]["bandwidth"]
    if bandwidth:
        yield f"At best, at {bandwidth / 1e9:,.0f} GB/s a device, uniform routing, sums between devices free:"
    else:
        yield "How fast a device reads is not known here, so bytes stand alone. Uniform routing:"
    table = _table("pass", "slots", "experts", f"weights {unit}", f"caches {unit}", "ms", "evenly ms")
    passes = [("plain step", plan["plain"])]
    passes += [(f"verify {each['budget']}", each["verify"]) for each in plan["rounds"]]
    passes += [("draft", plan["draft"])] if plan["draft"] else []
    for name, each in passes:
        hit = each.get("distinct_experts")
        table.add_row(
            name,
            str(each.get("slots", "")),
            "" if hit is None else f"{hit:.1f}",
            size(each["weights"]),
            size(each["cache"]),
            _ms(each["seconds"]),
            _ms(each["evenly_seconds"]),
        )
    yield table
    yield "experts: that a layer's tokens hit. evenly: were no byte on two devices and all equally busy."
    yield ""
    table = _table("budget", "round ms", "break-even", "sums", "MB a sum")
    for each in plan["rounds"]:
        sums = each["verify"]["sums"]
        table.add_row(
            str(each["budget"]),
            _ms(each["seconds"]),
            f"{each['tokens_to_beat_plain']:.2f}",
            str(sums["count"]),
            f"{sums['bytes'] / 1e6:.3f}" if sums["count"] else "",
        )
    yield table
    yield "break-even: tokens a round must commit to be as fast as plain decoding. sums: between devices."


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _unit(size: int) -> tuple[str, Callable[[float], str]]:
    """The unit for bytes of about this size, and how to show them in it."""
    return ("GB", _in(1e9)) if size >= 1e9 else ("MB", _in(1e6))


def _in(unit: float) -> Callable[[float], str]:
    """How to show bytes in a unit."""
    return lambda size: f"{size / unit:,.2f}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return ""
    # A small model's passes take microseconds.
    return f"{1e3 * seconds:.2f}" if seconds >= 1e-4 else f"{1e3 * seconds:.2g}"
