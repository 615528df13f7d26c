"""Measure the sizes that kernels are free to choose on this device, and keep the best.

    python -m scripts.tune_kernels [--only NAME] [--out DIR] [--quick]

Every kernel's present sizes and each of its trials (a present size or two changed) run over a few cases of
`scripts.bench_kernels`, timed and compared with the reference as there. A JSON line is printed for each, also
for a trial that does not compile. A trial is kept if, over all cases, the geometric mean of its times is 3 %
below the present's and none is 3 % above it, in a second measurement too, with errors at most twice as large.
Trials change the present sizes, so another run may find more.

What a kernel runs best with goes to the device's file in pallas_kernels/tuned, or in the folder --out; what
that file says of kernels that do not run here stays. With --quick everything is at toy size, what can be is
interpreted, and without --out nothing is written.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import jax

import pallas_kernels
from jddtree.errors import InputError
from pallas_kernels import tuning
from pallas_kernels.dense import mosaic as mosaic_dense
from pallas_kernels.grouped_matmul import cases
from pallas_kernels.grouped_matmul import mosaic as mosaic_experts
from pallas_kernels.grouped_matmul import tpu as tpu_experts
from pallas_kernels.grouped_matmul import triton as triton_experts
from pallas_kernels.top_k import levels
from pallas_kernels.tree_attention import mosaic as mosaic_attention
from pallas_kernels.tree_attention import tiles
from pallas_kernels.tree_attention import tpu as tpu_attention
from pallas_kernels.tree_attention import triton as triton_attention
from pallas_kernels.tree_attention.cases import TIMED, Case
from scripts import bench_kernels
from scripts.bench_kernels import LOGITS, Program, attempt, compiled, measured
from scripts.pair.command import run

FOLDER = Path(pallas_kernels.__file__).parent / "tuned"

MARGIN = 0.03
"""What a trial must gain: two measurements of one program differ by less."""

Functions = Mapping[str, Callable]


@dataclass(frozen=True)
class Kernel:
    """One implementation of an operation, and what is tried of its ``sizes``.

    ``function`` takes the operation's arguments and ``sizes``; ``quick`` stands in for it at toy size.
    ``programs`` makes those of implementations by their names, at toy size or not, for a number of turns.
    """

    operation: str
    implementation: str
    sizes: type
    function: Callable
    programs: Callable[[Functions, bool, int], list[Program]]
    trials: tuple[dict[str, int], ...]
    quick: Callable | None = None

    @property
    def name(self) -> str:
        return f"{self.operation} {self.implementation}"


@dataclass(frozen=True)
class Measured:
    """What is printed of a case with some sizes: microseconds a call; ``failure`` says why there are none."""

    kernel: str
    sizes: str
    case: str
    microseconds: float | None
    relative_error: float | None
    failure: str | None


def experts(*names: str) -> Callable[[Functions, bool, int], list[Program]]:
    """Programs of the routed experts' cases."""

    def programs(functions: Functions, quick: bool, turns: int) -> list[Program]:
        taken = [case for case in cases.TIMED if case.name in names][: 1 if quick else None]
        sized = [bench_kernels.small(case) if quick else case for case in taken]
        return [each for case in sized for each in bench_kernels.expert_programs(case, turns, functions)]

    return programs


def attention(*taken: Case) -> Callable[[Functions, bool, int], list[Program]]:
    """Programs of tree attention's cases."""

    def programs(functions: Functions, quick: bool, turns: int) -> list[Program]:
        sized = [bench_kernels.shrunk(taken[0])] if quick else taken
        return [each for case in sized for each in bench_kernels.attention_programs(case, functions)]

    return programs


def top_k(functions: Functions, quick: bool, turns: int) -> list[Program]:
    """Programs of top-k's cases."""
    sized = [(7, 512, 16)] if quick else LOGITS
    return [each for size in sized for each in bench_kernels.top_k_programs(*size, functions)]


def dense(counts: tuple[int, ...], *names: str) -> Callable[[Functions, bool, int], list[Program]]:
    """Programs of dense operations, for each of these numbers of tokens."""

    def programs(functions: Functions, quick: bool, turns: int) -> list[Program]:
        return [
            each
            for name in names
            for tokens in counts[: 1 if quick else None]
            for each in bench_kernels.dense_programs(f"{name}, {tokens}", name, tokens, quick, functions)
        ]

    return programs


def changes(**fields: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    """Trials that change one field each."""
    return tuple({field: value} for field, values in fields.items() for value in values)


BY_NAME = {case.name: case for case in TIMED}

FOUR_B = BY_NAME["Qwen3-4B, 4k"]

SHORT = tuple(
    replace(FOUR_B, name=f"Qwen3-4B, 1k, {told}", slots=slots, cache=1024, lengths=(1024,))
    for slots, told in ((1, "1 slot"), (17, "17 slots"))
)

LATENT = BY_NAME["K2.6, 8 heads, 32k"]

SHORT_LATENT = replace(LATENT, name="K2.6, 8 heads, 2k", cache=2048, lengths=(2048,))

SLICES = tuple(f"K2.6 tp8, {tokens}" for tokens in ("1 token", "9 tokens", "17 tokens", "33 tokens"))

KERNELS = (
    Kernel(
        *("grouped_matmul", "mosaic_gpu", mosaic_experts.Sizes, mosaic_experts.expert_mlp, experts(*SLICES)),
        changes(stages=(3, 6), steps_of_few=(4, 14), steps_of_many=(7, 28, 56), steps_of_down=(4, 16)),
    ),
    Kernel(
        *("grouped_matmul", "triton", triton_experts.Sizes, triton_experts.expert_mlp, experts(*SLICES)),
        (
            *changes(strip=(32, 128), programs=(100, 400), words=(16,), stages=(2,), warps=(2, 8)),
            # More in flight has room beside narrower strips alone.
            *({"strip": 32, "words": 64}, {"strip": 32, "stages": 4}),
        ),
        quick=partial(triton_experts.expert_mlp, interpret=True),
    ),
    Kernel(
        *("grouped_matmul", "mosaic_tpu", tpu_experts.Sizes, tpu_experts.expert_mlp, experts(*SLICES)),
        changes(strip_bytes=(1 << 18, 1 << 19, 1 << 21, 1 << 22)),
    ),
    *(
        Kernel(
            *(f"dense_{operation}_{limit}", "mosaic_gpu", mosaic_dense.Sizes, function),
            *(dense(counts, *names), changes(inputs=(64, 128, 256), stages=(2, 3, 4, 5, 6, 8)) + ways),
            quick=partial(function, interpret=True),
        )
        for operation, function, names, ways in (
            ("products", mosaic_dense.products, ("qkv",), changes(programs=(160,))),
            ("swiglu", mosaic_dense.swiglu, ("gate and up",), ()),
            ("added", mosaic_dense.added, ("attention out", "down"), changes(programs=(40, 80, 160, 320))),
        )
        for limit, counts in zip(mosaic_dense.TOKENS, ((1, 24), (72,)), strict=True)
    ),
    Kernel(
        *("top_k", "levels", levels.Sizes, levels.top_k, top_k),
        changes(few=(512, 8192), long=(8192, 1 << 16, 1 << 18)),
    ),
    Kernel(
        *("tree_attention", "mosaic_gpu", mosaic_attention.Sizes, mosaic_attention.tree_attention),
        attention(LATENT, BY_NAME["K2.6, 64 heads, 32k"], SHORT_LATENT),
        changes(waves=(2,), shortest=(64, 256, 512)),
    ),
    Kernel(
        *("tree_attention", "triton", tiles.Sizes, triton_attention.tree_attention),
        attention(BY_NAME["bundled target"], BY_NAME["bundled drafter"], *SHORT),
        changes(
            rows=(32,), sharing=(1,), keys=(32, 64), warps=(8,), stages=(3,), waves=(2,), shortest=(128, 256)
        ),
        quick=partial(triton_attention.tree_attention, interpret=True),
    ),
    Kernel(
        *("tree_attention", "mosaic_tpu", tpu_attention.Sizes, tpu_attention.tree_attention),
        attention(BY_NAME["bundled target"], *SHORT, LATENT),
        changes(tile_bytes=(1 << 19, 1 << 20, 1 << 22), keys=(512, 2048), rows=(576,)),
    ),
)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    taken = [kernel for kernel in KERNELS if args.only is None or args.only in kernel.name]
    if not taken:
        names = ", ".join(kernel.name for kernel in KERNELS)
        raise InputError(f"no kernel's name holds {args.only!r}: they are {names}")
    folder = args.out or (None if args.quick else FOLDER)
    file = None if folder is None else folder / tuning.file_of(jax.devices()[0].device_kind)
    print(json.dumps({"device": jax.devices()[0].device_kind, "jax": jax.__version__}), flush=True)
    for kernel in taken:
        found = best(kernel, args.quick)
        # After each kernel, so that what was measured is there if a later one ends the process.
        if found is not None and file is not None:
            write(file, kernel, found)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAME", help="kernels whose operation and implementation hold NAME")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write instead")
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see that everything runs")
    return parser.parse_args(arguments)


def best(kernel: Kernel, quick: bool) -> Any | None:
    """The kernel's present sizes, or of its trials the best if that is better; None where it does not run."""
    present = tuning.sizes(kernel.operation, kernel.implementation, kernel.sizes)
    trials = [trial for trial in kernel.trials if replace(present, **trial) != present]
    sizes = {kernel.implementation: present}
    for trial in trials[: 2 if quick else None]:
        told = ", ".join(f"{field} {value}" for field, value in trial.items())
        sizes[f"{kernel.implementation}, {told}"] = replace(present, **trial)
    function = (kernel.quick if quick else None) or kernel.function
    functions = {name: partial(function, sizes=each) for name, each in sizes.items()}
    turns = 1 if quick else 16
    programs = kernel.programs(functions, quick, turns)
    now = kernel.implementation
    first = [program for program in programs if program.implementation == now]
    ready = ready_of(first, turns)
    runs = {program.case for program, (loop, _) in zip(first, ready, strict=True) if loop is not None}
    others = [each for each in programs if each.implementation != now and each.case in runs]
    ready += ready_of(others, turns)
    rows, loops = [], {}
    for program, (loop, failure) in zip([*first, *others], ready, strict=True):
        rows.append(timed(kernel, program, loop, failure, turns))
        loops[program.implementation, program.case] = program, loop
    ranked = ranking(now, rows)
    if ranked is None:
        return None
    chosen = now
    if ranked and ranked[0][0] < 1 - MARGIN:
        again = [
            timed(kernel, program, loop, None, turns)
            for (name, case), (program, loop) in loops.items()
            if name in (now, ranked[0][1]) and case in runs
        ]
        second = ranking(now, again)
        if second and second[0][0] < 1 - MARGIN:
            chosen = ranked[0][1]
    told = {"kernel": kernel.name, "kept": chosen, "sizes": asdict(sizes[chosen])}
    ratios = {name: round(ratio, 4) for ratio, name in ranked}
    print(json.dumps(told | {"times_to_present": ratios}), flush=True)
    return sizes[chosen]


def ready_of(programs: list[Program], turns: int) -> list[tuple[Callable | None, str | None]]:
    """What `attempt` has of each program's compiled loop. Nothing is timed meanwhile."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(lambda program: attempt(compiled, program, turns), programs))


def timed(
    kernel: Kernel, program: Program, loop: Callable | None, failure: str | None, turns: int
) -> Measured:
    """Measure a compiled loop, and print the line."""
    microseconds = error = None
    if loop is not None:
        found, failure = attempt(measured, program, loop, turns)
        microseconds, error = found or (None, None)
    row = Measured(kernel.name, program.implementation, program.case, microseconds, error, failure)
    print(json.dumps(asdict(row)), flush=True)
    return row


def ranking(present: str, rows: list[Measured]) -> list[tuple[float, str]] | None:
    """Geometric means of the trials' times over the present's, the best first, of the trials that may be kept
    if that is enough: that ran wherever the present sizes do, are 3 % slower nowhere, and have an error at
    most twice theirs. None where the present sizes do not run.
    """
    by_name: dict[str, dict[str, tuple[float, float]]] = {}
    for row in rows:
        if row.microseconds is not None and row.relative_error is not None:
            by_name.setdefault(row.sizes, {})[row.case] = row.microseconds, row.relative_error
    base = by_name.pop(present, None)
    if base is None:
        return None
    found = []
    for name, own in by_name.items():
        if own.keys() != base.keys():
            continue
        ratios = [own[case][0] / microseconds for case, (microseconds, _) in base.items()]
        right = all(own[case][1] <= 2 * error for case, (_, error) in base.items())
        if right and max(ratios) < 1 + MARGIN:
            found.append((exp(fmean(map(log, ratios))), name))
    return sorted(found)


def write(file: Path, kernel: Kernel, sizes: Any) -> None:
    """Put a kernel's sizes into the device's file, which keeps what it, or the package's, holds of others."""
    source = next((each for each in (file, FOLDER / file.name) if each.is_file()), None)
    held = {} if source is None else json.loads(source.read_text(encoding="utf-8"))
    held.setdefault(kernel.operation, {})[kernel.implementation] = asdict(sizes)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(main)
