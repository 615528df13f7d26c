"""Time the rounds of a model on one device, with random weights, beside what its bandwidth allows.

    python -m scripts.bench_round --model k2.6-tp8|qwen3-4b [--contexts N ...] [--json FILE] [--quick]

k2.6-tp8 is what one of eight devices holds of Kimi K2.6 under tp8: the plain step and verify passes over
random trees. qwen3-4b is a target of Qwen3-4B's sizes with its drafter: plain step, whole rounds as they
ship, and their stages apart. A JSON line for every program as soon as it is measured, then how far the passes
agree with the plain step, then a table.

A time is a turn's share of a loop on the device, as long as a dispatch of the decoder is and with what a
dispatch costs, median of a few; the state is donated, so a context grows by what is committed. The floor is
what must be read (weights, of the experts those that were hit, keys and values of the context) over the
bandwidth, measured first. Kernels are those that a turn launches, counted in the compiled program. Random
weights accept hardly any draft: times are those of real rounds, committed tokens are not.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from rich.console import Console
from rich.table import Table

from jddtree.decoder import most_rounds
from jddtree.errors import InputError
from jddtree.exactness import compare
from jddtree.models.layers import join_mlps
from jddtree.models.moe import tile_experts
from jddtree.plan.compiled import summary
from jddtree.state import Method
from scripts.ceilings import ceilings
from scripts.pair.command import run
from scripts.pair.publish import write_json
from scripts.random_weights import filled
from scripts.round.kernels import kernels
from scripts.round.models import NAMES, models
from scripts.round.programs import Program, Ready, Setting, chain, distinct, empty, passes, rounds, stages

DISPATCHES = 5
"""After one that warms up."""

FAR = 1e-4
"""Relative distance of logits in float32 that rounding does not explain. In bfloat16 there is no such limit:
near ties between random experts fall the other way, layer after layer, until the logits are those of another
token (1.4 apart), in plain JAX too. There the distances are given and not judged: the operations are held
against float32 by `scripts.bench_kernels`, and few layers (``--layers 4``) stay close.
"""


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    made = models(args.model, args.layers, args.quick)
    if args.contexts[-1] > made.target.config.max_position:
        raise InputError(f"--contexts: {args.model} has {made.target.config.max_position} positions")
    bandwidth, _ = ceilings(args.quick)
    device = jax.devices()[0]
    device_facts: dict[str, Any] = {"model": args.model, "layers": made.target.config.num_layers}
    device_facts |= {"device": device.device_kind, "jax": jax.__version__, "bytes_per_second": bandwidth}
    print(json.dumps(device_facts), flush=True)
    place, began = SingleDeviceSharding(device), time.perf_counter()
    pair = made.target, made.drafter
    # Before anything is compiled: compiling may run trials on the device.
    pair = jax.block_until_ready(filled(pair, [place] * len(jax.tree.leaves(pair)), args.seed))
    for model in pair:
        if model is not None:
            join_mlps(model)
    tile_experts(pair[0], made.dtype)
    weights = jax.tree.leaves(pair)
    target, drafter = jax.eval_shape(lambda: pair)
    made = replace(made, target=target, drafter=drafter)
    made_of = {"weight_bytes": sum(leaf.nbytes for leaf in weights), "seconds": time.perf_counter() - began}
    print(json.dumps(made_of), flush=True)
    report: dict[str, Any] = device_facts | made_of | {"programs": [], "failures": [], "checks": []}
    settings = [
        Setting(made, context, turns=2 if args.quick else most_rounds("gpu")) for context in args.contexts
    ]
    programs = [chosen(args, setting) for setting in settings]
    ready = compiled([program for each in programs for program in each])
    for setting, behind in zip(settings, programs, strict=True):
        for kind, record in timed(setting, behind, ready, weights, bandwidth):
            print(json.dumps(record), flush=True)
            report[kind].append(record)
        if args.json:
            write_json(args.json, report)
    show(report)
    if report["failures"] or any(record["sound"] is False for record in report["checks"]):
        raise SystemExit(1)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The flags. Raises InputError."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=NAMES, required=True)
    add("--layers", type=int, help="of the target; default: all")
    add("--contexts", type=int, nargs="+", help="tokens before a round; default: 1024, and 32768 of k2.6-tp8")
    add("--widths", type=int, nargs="+", help="verify slots of k2.6-tp8; default: 1 9 17 33 65")
    add("--budgets", type=int, nargs="+", help="nodes of qwen3-4b's trees; default: 16 64")
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="write all figures")
    add("--quick", action="store_true", help="toy sizes, to see that everything runs")
    args = parser.parse_args(arguments)
    if args.contexts is None:
        args.contexts = [1024] if args.model == "qwen3-4b" or args.quick else [1024, 32_768]
    args.widths = args.widths or ([1, 5] if args.quick else [1, 9, 17, 33, 65])
    args.budgets = args.budgets or ([3] if args.quick else [16, 64])
    for name in ("contexts", "widths", "budgets"):
        values = sorted(set(getattr(args, name)))
        if values[0] < 1:
            raise InputError(f"--{name} must be 1 or more, not {values[0]}")
        setattr(args, name, values)
    if args.widths[0] > 1:
        # The plain step is what the others are held to.
        args.widths = [1, *args.widths]
    return args


def compiled(programs: list[Program]) -> dict[int, Ready | str]:
    """By the programs' ``id``: them, ready to run, or why they are not.

    All are compiled before any is timed, the slowest first. Two at a time: XLA times kernels as it compiles,
    and a busy host spoils that.
    """

    def one(program: Program) -> Ready | str:
        try:
            return program.compile()
        except jax.errors.JaxRuntimeError as error:
            return f"not compiled: {str(error).splitlines()[0]}"

    order = sorted(programs, key=lambda program: program.width, reverse=True)
    with ThreadPoolExecutor(2) as pool:
        return {id(program): each for program, each in zip(order, pool.map(one, order), strict=True)}


def timed(
    setting: Setting,
    programs: list[Program],
    ready: dict[int, Ready | str],
    weights: list[jax.Array],
    bandwidth: float,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The figures of all programs behind one context ("programs"), then how they agree ("checks")."""
    ran: list[Ran] = []
    for program in programs:
        each = ready[id(program)]
        if isinstance(each, Ready):
            try:
                record, given = measured(program, each, weights, bandwidth)
            except jax.errors.JaxRuntimeError as error:
                each = f"not run: {str(error).splitlines()[0]}"
            else:
                ran.append(Ran(program, each, given))
                yield "programs", record
        if isinstance(each, str):
            yield "failures", about(program) | {"failure": each}
    plain = next((each for each in ran if each.program.name == "plain step"), None)
    if plain is not None:
        check = checked_passes if setting.models.drafter is None else checked_rounds
        for record in check(setting, plain, ran, weights):
            yield "checks", record


@dataclass(frozen=True)
class Ran:
    """A program, and what its dispatches gave, the first one included."""

    program: Program
    ready: Ready
    given: list[Any]


def about(program: Program) -> dict[str, Any]:
    """Which one it is."""
    return {
        "program": program.name,
        "context": program.context,
        "tokens": program.tokens,
        "slots": program.width,
    }


def chosen(args: argparse.Namespace, setting: Setting) -> list[Program]:
    """What is timed behind one context."""
    if setting.models.drafter is None:
        return [passes(setting, width) for width in args.widths]
    block = setting.models.depth + 1
    trees = {budget: Method.tree(block, budget) for budget in args.budgets}
    found = [rounds(setting, "plain step", Method.plain()), rounds(setting, "chain", Method.chain(block))]
    found += [rounds(setting, "tree", method) for method in trees.values()]
    for index, method in enumerate(trees.values()):
        # Drafting is the same for every budget.
        found += stages(setting, method)[min(index, 1) :]
    return [*found, empty(setting)]


def measured(
    program: Program, ready: Ready, weights: list[jax.Array], bandwidth: float
) -> tuple[dict[str, Any], list[Any]]:
    """The figures of a program, and what its dispatches gave, the first one included."""
    carry, seconds, found = program.begin(), [], []
    for _ in range(1 + DISPATCHES):
        began = time.perf_counter()
        carry, seen = jax.block_until_ready(ready.run(weights, carry))
        seconds.append(time.perf_counter() - began)
        found.append(jax.device_get(seen))
        # As the decoder does: where the next results find another place, XLA has to rewrite its graphs.
        del seen
    size, text = summary(ready.compiled), ready.compiled.as_text()
    assert text is not None
    milliseconds = 1e3 * statistics.median(seconds[1:]) / program.turns
    read = program.bytes(found[1:])
    floor = 1e3 * read / bandwidth
    record = about(program) | {
        "ms": milliseconds,
        "floor_ms": floor,
        "times_floor": milliseconds / floor if floor else None,
        "bytes": read,
    }
    if program.uniform is not None:
        record["experts"] = distinct([experts for _, experts in found[1:]])
        record["experts_if_uniform"] = program.uniform
    record["kernels"] = kernels(text)
    record |= {"compile_s": ready.seconds, "total_bytes": size["total"], "scratch_bytes": size["temporaries"]}
    return record | {"implementations": ready.implementations}, found


def checked_passes(
    setting: Setting, plain: Ran, ran: list[Ran], weights: list[jax.Array]
) -> Iterator[dict[str, Any]]:
    """Every pass over a chain of the plain steps' text against those steps: relative distance of the logits,
    of the root's alone (another width, nothing else) and of all slots'.
    """
    steps = np.concatenate([logits[:, 0] for logits, _ in plain.given])
    text = np.argmax(steps, axis=-1).tolist()
    for each in ran:
        program = each.program
        if program.width == 1:
            continue
        state, _, logits, experts = program.begin()
        anchor = int(state.tokens[0, setting.tokens])
        carry = state, chain([anchor, *text], program.width), logits, experts
        _, (ours, _) = jax.device_get(each.ready.run(weights, carry))
        theirs = steps[: program.width]
        ours = ours[0, : len(theirs)]
        distances = np.linalg.norm(ours - theirs, axis=-1) / np.linalg.norm(theirs, axis=-1)
        agree = np.argmax(ours, axis=-1) == np.argmax(theirs, axis=-1)
        yield {
            "check": "a chain against plain steps",
            "context": setting.context,
            "slots": program.width,
            "distance_root": float(distances[0]),
            "distance": float(np.median(distances)),
            "worst": float(np.max(distances)),
            "same_likeliest": float(np.mean(agree)),
            "sound": None if setting.models.dtype != jnp.float32 else bool(np.max(distances) < FAR),
        }


def checked_rounds(
    setting: Setting, plain: Ran, ran: list[Ran], weights: list[jax.Array]
) -> Iterator[dict[str, Any]]:
    """The texts of all rounds against the plain step's, and what a verify pass over a chain of the plain text
    finds likeliest.
    """
    dtype = setting.models.dtype.name
    text, margins = written(plain.given)
    for each in ran:
        program = each.program
        if program.name not in ("chain", "tree", "verify"):
            continue
        kept = None
        if program.name == "verify":
            _, *rest = program.begin()
            anchor = int(setting.state(Method.plain()).tokens[0, setting.tokens])
            carry = chain([anchor, *text], program.width), *rest
            _, logits = jax.device_get(each.ready.run(weights, carry))
            ours = np.argmax(logits[0], axis=-1).tolist()
        else:
            ours, _ = written(each.given)
            kept = len(ours) / sum(len(report.kept) for report in each.given)
        shared = min(len(ours), len(text))
        seen = compare(ours[:shared], text[:shared], margins[:shared])
        yield {
            "check": program.name,
            "context": setting.context,
            "slots": program.width,
            "tokens": shared,
            "committed_a_round": kept,
            "first_divergence": seen.first_divergence,
            "gap": seen.gap,
            "verdict": seen.verdict(dtype),
            "sound": seen.equal or seen.is_tie(dtype),
        }


def written(reports: list[Any]) -> tuple[list[int], list[float]]:
    """The text that the rounds of some dispatches wrote, and by how much each token won."""
    tokens, margins = [], []
    for report in reports:
        for index, kept in enumerate(report.kept[:, 0]):
            tokens += report.tokens[index, 0, :kept].tolist()
            margins += report.margins[index, 0, :kept].tolist()
    return tokens, margins


def show(report: dict[str, Any]) -> None:
    """The tables on the terminal."""
    table = Table(
        *("program", "context", "slots", "ms", "floor", "x floor", "experts", "uniform"),
        *("kernels", "compile s", "GB"),
        title=f"{report['model']}, {report['layers']} layers, {report['device']}",
    )
    for each in report["programs"]:
        times = f"{each['times_floor']:.2f}" if each["times_floor"] else ""
        experts = [f"{each[key]:.1f}" if key in each else "" for key in ("experts", "experts_if_uniform")]
        table.add_row(
            *(each["program"], str(each["context"]), str(each["slots"]), f"{each['ms']:.3f}"),
            *(f"{each['floor_ms']:.3f}", times, *experts, str(sum(each["kernels"].values()))),
            *(f"{each['compile_s']:.1f}", f"{each['total_bytes'] / 1e9:.2f}"),
        )
    Console(width=110).print(table)
    for each in (*report["failures"], *report["checks"]):
        print(", ".join(f"{key}: {value}" for key, value in each.items() if value is not None))


if __name__ == "__main__":
    run(main)
