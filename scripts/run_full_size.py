"""Time a target and its drafter at full size without their weights: random ones are made on the devices.

Kimi K2.6 with INT4 experts and its drafter, by default, cut over all devices in several layouts: bytes a
device beside the plan's, the plain step, chain and tree rounds at several contexts and batches, each with its
share of the bandwidth floor and of time between devices. First, logits and ids of two layers are compared
with one device's. Where a model of all layers does not fit, one of as many layers as fit is timed, and the
line says so. Random weights accept hardly any draft: times are those of real rounds, committed tokens are
not.

    python -m scripts.run_full_size [--layouts tp8 ep8] [--contexts 1024] [--json FILE]
"""

import argparse
import gzip
import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jddtree.config import read_json
from jddtree.decoder import Decoder, Task, slots_for
from jddtree.errors import InputError
from jddtree.exactness import compare
from jddtree.finish import Generation
from jddtree.models.layers import join_mlps
from jddtree.models.moe import tile_experts
from jddtree.pipeline import stacked
from jddtree.plan import machine
from jddtree.plan.memory import Holdings
from jddtree.plan.pair import CONFIGS, KIMI, KIMI_DRAFTER
from jddtree.sampling import Mode
from jddtree.sharding import ONE_DEVICE, Layout, check, is_staged, parameter_spec, parameter_specs
from jddtree.state import Method, Options
from jddtree.wording import counted
from scripts import random_weights
from scripts.pair.command import run
from scripts.pair.options import clock
from scripts.pair.publish import write_json

ROOM = 0.9
"""Of a device's memory, what a model and its scratch may take."""

CLOSE = {"float32": 1e-4, "bfloat16": 5e-2}
"""Largest relative L2 distance that rounding explains."""

LIKELIEST = 32
"""Tokens whose log-probabilities are compared."""

TOKENS = 16
"""Of the prompt and of the text that are compared."""

Say = Callable[[str], None]


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    say, box = clock(), machine.find("local")
    report: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "dtype": args.dtype,
        "layouts": {},
    }
    unequal = []
    for layout in args.layouts:
        with tempfile.TemporaryDirectory() as folder:
            report["layouts"][str(layout)] = timed(args, layout, box, Path(folder), say)
        if report["layouts"][str(layout)]["two_layers"]["equal"] is False:
            unequal.append(str(layout))
        if args.json:
            write_json(args.json, report)
    if unequal:
        print(f"two layers do not give what they give on one device: {', '.join(unequal)}")
        raise SystemExit(1)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The flags. Raises InputError."""
    count = jax.device_count()
    usual = [f"tp{count}", f"ep{count}", f"ep{count // 2}xtp2", f"pp{count}"] if count > 1 else ["tp1"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", type=Path, default=Path(KIMI), help="folder with a config.json")
    add("--drafter", type=Path, help=f"folder with a config.json (default for {KIMI}: {KIMI_DRAFTER})")
    add("--layouts", nargs="+", default=usual, help=f"default: {' '.join(usual)}")
    add("--layers", type=int, help="of the target; default: all, or as many as fit")
    add("--contexts", type=int, nargs="+", default=[1024, 32768], help="tokens behind each row")
    add("--batches", type=int, nargs="+", default=[1, 8, 32], help="rows at a time")
    add("--budgets", type=int, nargs="*", default=[8, 16, 32], help="of trees, beside plain and chain")
    add("--rounds", type=int, default=16, help="rounds that are timed")
    add("--seed", type=int, default=0)
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    add("--json", type=Path, help="write all figures, after every layout")
    args = parser.parse_args(arguments)
    for name in ("contexts", "batches", "budgets", "rounds", "layers"):
        values = getattr(args, name)
        for value in values if isinstance(values, list) else [values]:
            if value is not None and value < 1:
                raise InputError(f"--{name} must be 1 or more, not {value}")
    if args.drafter is None and args.target != Path(KIMI):
        raise InputError("--target needs its --drafter")
    args.drafter = args.drafter or Path(KIMI_DRAFTER)
    args.layouts = list(dict.fromkeys(map(Layout.parse, args.layouts)))
    return args


def timed(
    args: argparse.Namespace, layout: Layout, box: machine.Machine, folder: Path, say: Say
) -> dict[str, Any]:
    """All figures of one layout. ``folder``: an empty one to work in. Raises InputError."""
    dtype, mesh = jnp.dtype(args.dtype), layout.mesh()
    held = partial(holdings, args, layout, dtype)
    whole = held(None)
    longest = slots_for(max(args.contexts) + args.rounds * whole.block)
    layers = args.layers or fitting(held, max(args.batches), longest, max(args.budgets, default=8), box)
    found: dict[str, Any] = {"layers": layers, "all_layers": whole.target.config.num_layers}
    say(f"{layout}: {layers} of {found['all_layers']} layers")
    found["two_layers"] = alike = compared(held(2), mesh, args.seed, min(args.budgets, default=8))
    distance = alike.get("note") or f"logits' relative distance to one device's {alike['l2']:.1e}"
    say(f"{layout}: two layers, {distance}")
    for name, verdict in alike["ids"].items():
        say(f"{layout}: two layers, {TOKENS} ids of {name} {verdict}")

    made = held(layers)
    began = time.perf_counter()
    target = filled(made, mesh, made.target, args.seed)
    drafter = filled(made, mesh, made.drafter, args.seed + 1)
    planned = sum(share.bytes for share in made.weights)
    taken = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves((target, drafter)))
    found |= {"weight_bytes": taken, "planned_weight_bytes": planned}
    say(
        f"{layout}: {taken / 1e9:.2f} GB of weights a device (plan: {planned / 1e9:.2f}), made in "
        f"{time.perf_counter() - began:.1f} s"
    )
    methods = {"plain": Method.plain(), "chain": Method.chain(made.block)}
    methods |= {f"tree({budget})": Method.tree(made.block, budget) for budget in args.budgets}
    found["rounds"] = []
    for batch in args.batches:
        if batch % layout.data:
            say(f"{layout}: {counted(batch, 'row')} cannot be shared by {layout.data}: left out")
            continue
        for context in args.contexts:
            slots = slots_for(context + args.rounds * made.block)
            prompt = (
                np.random.default_rng(args.seed).integers(0, made.target.config.vocab_size, context).tolist()
            )
            task = Task(prompt, max_new=args.rounds + 1)  # the prompt's own pass gives one

            def compiled(method: Method, batch=batch, slots=slots, task=task) -> Decoder:
                decoder = Decoder(target, drafter, method, rows=batch, slots=slots, dtype=dtype)
                decoder.compile_for([task])
                return decoder

            with ThreadPoolExecutor(len(methods)) as pool:
                decoders = dict(zip(methods, pool.map(compiled, methods.values()), strict=True))
            for name, decoder in decoders.items():
                record: dict[str, Any] = {"method": name, "batch": batch, "context": context}
                record |= measured(decoder, [task] * batch, folder / f"trace-{name}")
                sized, width = made_for(made, batch, slots), decoder.method.budget + 1
                floor = sized.verify(width, context).total
                floor += sized.draft(context).total if decoder.method.depth else 0.0
                if box.bandwidth:
                    record["floor_ms"] = 1e3 * floor / box.bandwidth
                    record["percent_of_bandwidth"] = 100 * record["floor_ms"] / record["round_ms"]
                found["rounds"].append(record)
                say(f"{layout}: " + line(record))
    return found


def line(record: dict[str, Any]) -> str:
    """One figure for the terminal."""
    text = f"{counted(record['batch'], 'row')}, context {record['context']}, {record['method']}: "
    text += f"{record['round_ms']:.2f} ms a round"
    if "percent_of_bandwidth" in record:
        text += f", {record['percent_of_bandwidth']:.0f} % of the bandwidth floor"
    if record["between_devices"] is not None:
        text += f", {100 * record['between_devices']:.0f} % of it between devices"
    return text


class Sized(Holdings):
    """`Holdings` whose drafter is there."""

    @property
    def block(self) -> int:
        """Tokens of a drafted block."""
        assert self.drafter is not None
        return self.drafter.block_size


def holdings(args: argparse.Namespace, layout: Layout, dtype: jnp.dtype, layers: int | None) -> Sized:
    """The pair's shapes with so many of the target's layers (None: all). Raises InputError."""
    raws = []
    for place, name in ((args.target, KIMI), (args.drafter, KIMI_DRAFTER)):
        file = CONFIGS / f"{name}.json" if place == Path(name) else place / "config.json"
        raws.append(dict(read_json(file)))
    target, drafter = raws
    if layers is not None:
        target, drafter = random_weights.with_layers(target, drafter, layers)
    model, drafts = random_weights.shapes(target, drafter, dtype)
    assert drafts is not None
    check(layout, model.config)
    check(layout, drafts.config)
    return Sized(model, drafts, layout, batch=layout.data, slots=1024, dtype=dtype)


def made_for(made: Sized, batch: int, slots: int) -> Sized:
    """The same pair for other rows and cache slots."""
    return Sized(made.target, made.drafter, made.layout, batch, slots, made.dtype)


def fitting(
    held: Callable[[int | None], Sized], batch: int, slots: int, budget: int, box: machine.Machine
) -> int:
    """How many layers fit into a device's memory."""
    whole = held(None)
    layers = whole.target.config.num_layers
    if box.memory is None:
        return layers

    def size(layers: int) -> int:
        each = made_for(held(layers), -(-batch // whole.layout.data) * whole.layout.data, slots)
        return sum(each.by_class().values()) + each.scratch(budget)

    while layers > 2 and size(layers) > ROOM * box.memory:
        layers -= 1
    return layers


def filled(made: Sized, mesh: Mesh, model: Any, seed: int) -> Any:
    """The model with random weights, the same under every layout but stages, made where they belong."""
    form = stacked(model, made.layout) if is_staged(made.layout, model.config) else model
    specs = jax.tree.leaves(parameter_specs(made.layout, form))
    model = random_weights.filled(form, [NamedSharding(mesh, spec) for spec in specs], seed)

    def place(name: str) -> NamedSharding:
        return NamedSharding(mesh, parameter_spec(made.layout, model.config, name))

    join_mlps(model, place)
    if not is_staged(made.layout, model.config):
        tile_experts(model, made.dtype, place)
    return model


def compared(made: Sized, mesh: Mesh, seed: int, budget: int) -> dict[str, Any]:
    """What the cut model gives against one device, from the same weights. ``l2``: relative distance of the
    likeliest tokens' log-probabilities after a short prompt. ``ids``: how the tokens of plain decoding and of
    a tree compare with plain decoding on one device.
    """
    if is_staged(made.layout, made.target.config):
        # A stage's arrays hold several layers', so that they are not drawn alike.
        return {"equal": None, "l2": None, "ids": {}, "note": "not compared: stages draw other weights"}
    whole = Sized(made.target, made.drafter, ONE_DEVICE, 1, made.slots, made.dtype)
    plain = _decoded(whole, ONE_DEVICE.mesh(jax.devices()[:1]), seed, {"plain": Method.plain()})["plain"]
    methods = {"plain": Method.plain(), f"tree({budget})": Method.tree(made.block, budget)}
    cut = _decoded(made, mesh, seed, methods)
    one, ours = (dict(each.top_logprobs[0]) for each in (plain, cut["plain"]))
    common = sorted(one.keys() & ours.keys())
    theirs, found = (np.array([each[token] for token in common]) for each in (one, ours))
    l2 = float(np.linalg.norm(found - theirs) / np.linalg.norm(theirs)) if common else math.inf
    seen = {name: compare(each.output_ids, plain.output_ids, plain.margins) for name, each in cut.items()}
    dtype = made.dtype.name
    alike = all(each.equal or each.is_tie(dtype) for each in seen.values())
    # Near the end of the list a tie may let another token in.
    equal = l2 < CLOSE[dtype] and len(common) > LIKELIEST // 2 and alike
    ids = {name: each.verdict(dtype, "one device's") for name, each in seen.items()}
    return {"equal": equal, "l2": l2, "ids": ids}


def _decoded(made: Sized, mesh: Mesh, seed: int, methods: dict[str, Method]) -> dict[str, Generation]:
    """A short text by every method."""
    target, drafter = filled(made, mesh, made.target, seed), None
    if any(method.depth for method in methods.values()):
        drafter = filled(made, mesh, made.drafter, seed + 1)
    options, rows = Options(Mode(), top_logprobs=LIKELIEST), made.layout.data
    found = {}
    for name, method in methods.items():
        decoder = Decoder(
            *(target, drafter if method.depth else None, method),
            rows=rows,
            slots=slots_for(2 * TOKENS + made.block),
            dtype=made.dtype,
            options=options,
            rounds=1,
        )
        *_, done = decoder.decode([Task(list(range(TOKENS)), max_new=TOKENS)])
        found[name] = done[0]
    return found


def measured(decoder: Decoder, tasks: Sequence[Task], folder: Path) -> dict[str, Any]:
    """``prefill_s``, ``round_ms``, ``compile_s``, and the share of a round between devices: of the time that
    a GPU is busy, what its collectives take (None where that cannot be seen).
    """
    list(decoder.decode(tasks))
    rounds, seconds = decoder.rounds, decoder.round_seconds
    began = time.perf_counter()
    list(decoder.decode(tasks))
    whole = time.perf_counter() - began
    rounds, seconds = decoder.rounds - rounds, decoder.round_seconds - seconds
    return {
        "round_ms": 1e3 * seconds / rounds,
        "rounds": rounds,
        "prefill_s": whole - seconds,
        "compile_s": decoder.compile_seconds,
        "between_devices": _between_devices(decoder, tasks, folder),
    }


def _between_devices(decoder: Decoder, tasks: Sequence[Task], folder: Path) -> float | None:
    if jax.default_backend() != "gpu" or jax.device_count() == 1:
        return None
    steps = decoder.decode(tasks)
    next(steps)  # the prompt
    with jax.profiler.trace(str(folder)):
        list(steps)
    events: list[dict[str, Any]] = []
    for file in folder.rglob("*.trace.json.gz"):
        with gzip.open(file, "rt", encoding="utf-8") as opened:
            events += json.load(opened)["traceEvents"]
    on_gpu = {e["pid"] for e in events if e.get("name") == "process_name" and "GPU" in e["args"]["name"]}
    kernels = [
        e for e in events if e.get("ph") == "X" and e["pid"] in on_gpu and "hlo_op" in e.get("args", {})
    ]
    busy = sum(e["dur"] for e in kernels)
    # By operation: small sums run in kernels of XLA's own, fused with what follows them.
    exchange = re.compile(r"psum|pmin|pmax|ppermute|all-|collective-|reduce-scatter")
    between = [e["dur"] for e in kernels if exchange.match(e["args"]["hlo_op"])]
    return sum(between) / busy if busy else None


if __name__ == "__main__":
    run(main)
