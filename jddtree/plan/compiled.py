"""Programs compiled for a machine that need not be here, and what the compiler says that they take."""

import math
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jddtree.decoder import CHUNKS, Decoder, most_rounds
from jddtree.errors import InputError
from jddtree.pipeline import stacked
from jddtree.plan.machine import Machine
from jddtree.plan.memory import Holdings
from jddtree.sharding import is_staged, parameter_specs
from jddtree.state import Method

_OPERATIONS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf" = (.+?) ({_OPERATIONS})(-start)?\(")
_SHAPE = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")


def compiled(
    holdings: Holdings, machine: Machine, budgets: list[int], say: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Compile every budget's round and the widest prefill for a machine, cut as the layout says. Without a
    drafter a round is a plain step. Models are shapes: nothing is allocated. ``say`` takes lines for the
    user.

    Returns for each its ``program`` (a name), ``seconds``, and what `summary` says; of one that does not fit,
    the compiler's ``error``.

    Raises:
      InputError: the machine's compiler is not installed, or fails.
    """
    with machine.compile_devices() as devices:
        return _programs(holdings, machine, holdings.layout.mesh(devices), budgets, say)


def _programs(
    holdings: Holdings, machine: Machine, mesh: Mesh, budgets: list[int], say: Callable[[str], object]
) -> list[dict[str, Any]]:
    target, drafter = _placed(holdings, mesh, holdings.target), None
    methods = {"plain step": Method.plain()}
    if holdings.drafter is not None:
        drafter = _placed(holdings, mesh, holdings.drafter)
        methods = {f"round of {each}": Method.tree(drafter.block_size, each) for each in budgets}

    def decoder(method: Method) -> Decoder:
        return Decoder(
            target,
            drafter,
            method,
            rows=holdings.batch,
            slots=holdings.slots,
            dtype=holdings.dtype,
            rounds=None if machine.platform == "local" else most_rounds(machine.platform),
        )

    def attempt[T](name: str, job: Callable[[], T], program: Callable[[T], Any]) -> T | None:
        say(f"compiling for {machine.name}: {name}")
        began = time.perf_counter()
        record: dict[str, Any] = {"program": name}
        found.append(record)
        try:
            made = job()
        except jax.errors.JaxRuntimeError as error:
            line = refusal(str(error), machine.platform)
            if "RESOURCE_EXHAUSTED" not in line:
                raise InputError(f"compiling {name} for {machine.name} failed: {line}") from error
            record["error"] = line
            return None
        record["seconds"] = time.perf_counter() - began
        record |= summary(program(made))
        return made

    found: list[dict[str, Any]] = []
    for index, (name, method) in enumerate(methods.items()):
        made = attempt(name, partial(decoder, method), lambda made: made.program)
        if index == 0 and made is not None:
            # It does not depend on the budget.
            attempt(
                f"prefill of {CHUNKS[-1]}",
                partial(made.prefill_program, CHUNKS[-1]),
                lambda program: program,
            )
        made = None  # a compiled program of a large model is large itself
    return found


def refusal(error: str, platform: str) -> str:
    """A compiler's error as one line. libtpu does not look whether it is of the release that JAX goes with: a
    wrong one is an internal error, of which the line says what to do.
    """
    line = " ".join(error.splitlines()[0].split())
    if platform == "tpu" and line.startswith("INTERNAL"):
        line += f"; is libtpu the one for JAX {jax.__version__}? pip install 'jax[tpu]' brings it"
    return line


def summary(program: jax.stages.Compiled) -> dict[str, Any]:
    """What the compiler says of a program: bytes a device of ``arguments``, of ``results`` that do not take
    an argument's place, of ``temporaries``, and ``total``; ``collectives``.
    """
    size, text = program.memory_analysis(), program.as_text()
    assert size is not None and text is not None
    found = {
        "arguments": size.argument_size_in_bytes,
        "results": size.output_size_in_bytes - size.alias_size_in_bytes,
        "temporaries": size.temp_size_in_bytes,
    }
    return found | {"total": sum(found.values()), "collectives": collectives(text)}


def collectives(program: str) -> dict[str, dict[str, int]]:
    """Operations between devices in a compiled program's text, by name: their ``count``, and the ``bytes`` of
    all their results. What is in a loop counts once.
    """
    found: dict[str, dict[str, int]] = {}
    for line in program.splitlines():
        call = _COLLECTIVE.search(line)
        if call is None:
            continue
        shapes, name, started = call.groups()
        sizes = [
            math.prod(int(side) for side in sides.split(",") if side) * max(int(bits or 8) // 8, 1)
            for _, bits, sides in _SHAPE.findall(shapes)
        ]
        # One that has only started, but for all-reduce, gives its operand beside its result.
        size = max(sizes) if started and name != "all-reduce" else sum(sizes)
        entry = found.setdefault(name, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += size
    return found


def _placed(holdings: Holdings, mesh: Mesh, model: Any) -> Any:
    """The model's shapes with the places of their parts."""
    form = stacked(model, holdings.layout) if is_staged(holdings.layout, model.config) else model
    return jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)),
        form,
        parameter_specs(holdings.layout, form),
    )
