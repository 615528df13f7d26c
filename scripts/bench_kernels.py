"""Time every implementation of the kernels on this device, beside what the device could do at best.

    python -m scripts.bench_kernels [--only NAME] [--implementation NAME] [--quick]

Prints a JSON line for every case and implementation, then a table. The floor is the larger of the bytes that
must be read over the bandwidth and the operations over the matrix rate; both rates are measured first. What
fits the second-level cache can beat it. A time is the median of a few loops on the device, a call's share of
one loop that makes four calls a turn; the case "empty loop" is what a call costs before it does anything, and
is in every time. Every call of the experts goes to others, and the bytes are those of the different ones that
a call hits. The error is relative to the reference in float32 at the highest precision: the norm of the
difference over the norm, for top-k the share of ids that differ. With --quick everything runs at toy size.
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from rich.console import Console
from rich.table import Table

from jddtree.errors import InputError
from pallas_kernels import tuning
from pallas_kernels.dense import api as dense
from pallas_kernels.dense import reference as dense_reference
from pallas_kernels.dense.unnormed import Unnormed
from pallas_kernels.grouped_matmul import api as grouped_matmul
from pallas_kernels.grouped_matmul import cases, grouping, mosaic
from pallas_kernels.grouped_matmul.reference import expert_mlp
from pallas_kernels.grouped_matmul.tiles import ExpertTiles, pack
from pallas_kernels.top_k import api as top_k
from pallas_kernels.tree_attention import api as tree_attention
from pallas_kernels.tree_attention import reference
from pallas_kernels.tree_attention.cases import TIMED, Case
from scripts.ceilings import ceilings
from scripts.pair.command import run
from scripts.random_weights import maker

LOOPS = 5

CALLS = 4
"""Calls a turn."""

EPS = 1e-6
"""Of norms."""

ATTENTION, TOP_K, EXPERTS, PRODUCTS, SWIGLU, ADDED = (
    {name: functools.partial(call, implementation=name) for name, _ in implementations}
    for call, implementations in (
        (tree_attention.tree_attention, tree_attention.IMPLEMENTATIONS),
        (top_k.top_k, top_k.IMPLEMENTATIONS),
        (grouped_matmul.expert_mlp, grouped_matmul.IMPLEMENTATIONS),
        (dense.products, dense.PRODUCTS),
        (dense.swiglu, dense.SWIGLU),
        (dense.added, dense.ADDED),
    )
)
"""Every implementation by its name."""

DENSE = {"products": PRODUCTS, "swiglu": SWIGLU, "added": ADDED}

QWEN3_4B = {
    "qkv": ("products", 2560, (4096, 1024, 1024)),
    "gate and up": ("swiglu", 2560, (9728,)),
    "attention out": ("added", 4096, (2560,)),
    "down": ("added", 9728, (2560,)),
}
"""Dense layers: the operation, inputs and features."""

COLD = 1 << 28
"""Bytes of weights that a call goes through, more than any cache holds."""

LOGITS = ((7, 6144, 16), (7, 6144, 64), (15, 151_936, 16), (15, 151_936, 64))
"""Rows, width and k of top-k."""


@dataclass(frozen=True)
class Program:
    """One implementation of one case.

    ``function`` maps ``arrays`` to a pytree; ``wanted`` returns the right answer for the last call of a loop,
    ``error`` compares the two. ``step`` is added to the first array from each call to the next. ``calls``: of
    the operation, one after the other, that the function makes; bytes and operations are those of all.
    """

    case: str
    implementation: str
    function: Callable
    arrays: tuple
    bytes: float
    operations: float
    wanted: Callable[[], Any]
    error: Callable[[Any, Any], float | None]
    step: int = 0
    calls: int = 1


@dataclass
class Row:
    """What is printed of a program: times in microseconds a call; ``failure`` says why there is none."""

    case: str
    implementation: str
    microseconds: float | None
    floor_microseconds: float
    relative_error: float | None
    failure: str | None


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    turns = 1 if args.quick else 16
    programs = chosen(args.only, args.quick, turns)
    if args.implementation:
        programs = [each for each in programs if each.implementation == args.implementation]
        if not programs:
            raise InputError(f"no case has an implementation named {args.implementation!r}")
    bandwidth, rate = ceilings(args.quick)
    device = jax.devices()[0]
    about = {"device": device.device_kind, "jax": jax.__version__, "bytes_per_second": bandwidth}
    print(json.dumps(about | {"operations_per_second": rate}), flush=True)
    with ThreadPoolExecutor(max_workers=8) as pool:
        # All before anything is timed: compiling may run trials on the device.
        for wanted in dict.fromkeys(program.wanted for program in programs):
            pool.submit(attempt, wanted)
        compiling = [pool.submit(attempt, compiled, program, turns) for program in programs]
    rows = []
    for program, job in zip(programs, compiling, strict=True):
        floor = max(program.bytes / bandwidth, program.operations / rate) * 1e6 / program.calls
        ready, failure = job.result()
        microseconds = error = None
        if ready is not None:
            found, failure = attempt(measured, program, ready, turns)
            microseconds, error = found or (None, None)
        row = Row(program.case, program.implementation, microseconds, floor, error, failure)
        print(json.dumps(asdict(row)), flush=True)
        rows.append(row)
    show(rows)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAME", help="cases whose name holds NAME")
    parser.add_argument("--implementation", metavar="NAME", help="that one alone")
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see that everything runs")
    return parser.parse_args(arguments)


def chosen(only: str | None, quick: bool, turns: int) -> list[Program]:
    """Programs of the cases whose name holds ``only``. Raises InputError if there is none."""
    attention = [shrunk(case) if quick else case for case in TIMED]
    names = {case.name: functools.partial(attention_programs, case, ATTENTION) for case in attention}
    for rows, width, k in LOGITS:
        sized = rows, 512 if quick else width, k
        names[f"top-{k} of {rows} x {width}"] = functools.partial(top_k_programs, *sized, TOP_K)
    for name in QWEN3_4B:
        for tokens in (1, 24, 72):
            norm = "norm, " if tokens == 1 and QWEN3_4B[name][0] != "added" else ""
            told = f"Qwen3-4B {norm}{name}, {tokens} token{'s' if tokens > 1 else ''}"
            functions = DENSE[QWEN3_4B[name][0]]
            names[told] = functools.partial(dense_programs, told, name, tokens, quick, functions)
    for case in cases.TIMED:
        sized = small(case) if quick else case
        names[case.name] = functools.partial(with_products_alone, sized, turns)
    names["empty loop"] = empty_loop
    taken = [name for name in names if only is None or only in name]
    if not taken:
        raise InputError(f"no case's name holds {only!r}: they are {', '.join(names)}")
    return [program for name in taken for program in names[name]()]


def shrunk(case: Case) -> Case:
    """The case at toy size."""
    cache = min(case.cache, 64)
    return replace(case, cache=cache, lengths=(cache,), heads=min(case.heads, 2 * case.key_heads))


def small(case: cases.Case) -> cases.Case:
    """The experts' case at toy size."""
    return replace(case, hidden=128, inner=64, experts=16)


def attention_programs(case: Case, functions: Mapping[str, Callable]) -> list[Program]:
    """Implementations of tree attention, by their names, on one case."""
    arrays, options = drawn(case)
    latent_width = case.value_width if case.latent else None
    width = case.key_width + (0 if case.latent else case.value_width)
    seen = case.lengths[0] + case.slots
    itemsize = jnp.dtype(case.dtype).itemsize
    queries = case.slots * case.heads

    @functools.cache
    def wanted() -> jax.Array:
        wide = [x.astype(jnp.float32) if x is not None and x.dtype == case.dtype else x for x in arrays]
        with jax.default_matmul_precision("highest"):
            exact = functools.partial(reference.tree_attention, value_width=latent_width, **options)
            return jax.jit(exact)(*wide)

    def program(name: str, function: Callable) -> Program:
        return Program(
            *(case.name, name, function, arrays),
            bytes=itemsize * (seen * case.key_heads * width + queries * (case.key_width + case.value_width)),
            operations=2.0 * queries * seen * (case.key_width + case.value_width),
            wanted=wanted,
            error=distance,
        )

    return [
        program(name, functools.partial(function, value_width=latent_width, **options))
        for name, function in functions.items()
    ]


def drawn(case: Case) -> tuple[tuple, dict[str, Any]]:
    """Random arrays of a case in `tree_attention`'s order, and its options; the tree's parents are random."""
    keys = iter(jax.random.split(jax.random.key(7), 5))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, case.dtype)

    prefix, block = (
        (
            normal(case.rows, slots, case.key_heads, case.key_width),
            None if case.latent else normal(case.rows, slots, case.key_heads, case.value_width),
        )
        for slots in (case.cache, case.slots)
    )
    random, visible = np.random.default_rng(7), np.eye(case.slots, dtype=bool)
    for slot in range(1, case.slots):
        visible[slot] |= visible[random.integers(0, slot)]
    if case.tree == "all":
        visible[:] = True
    q = normal(case.rows, case.slots, case.heads, case.key_width)
    lengths, mask = jnp.asarray(case.lengths, jnp.int32), tree_attention.pack_mask(visible[None])
    return (q, *prefix, *block, lengths, mask), {"scale": case.key_width**-0.5, "lower": None}


def top_k_programs(rows: int, width: int, k: int, functions: Mapping[str, Callable]) -> list[Program]:
    """Implementations of top-k, by their names, over random logits."""
    x = jax.random.normal(jax.random.key(7), (rows, width))
    wanted = functools.cache(lambda: jax.lax.top_k(x, k)[1])

    def program(name: str, function: Callable) -> Program:
        return Program(
            *(f"top-{k} of {rows} x {width}", name, lambda x: function(x, k), (x,)),
            *(4.0 * rows * width, 0.0, wanted),
            error=lambda found, right: float(np.mean(np.asarray(found[1]) != np.asarray(right))),
        )

    return [program(*each) for each in functions.items()]


def dense_programs(
    told: str, name: str, tokens: int, quick: bool, functions: Mapping[str, Callable]
) -> list[Program]:
    """Implementations of a dense operation, by their names, each call over several sets of weights. A single
    token's norm belongs to the products that follow it, as in a pass.
    """
    operation, inputs, features = QWEN3_4B[name]
    if quick:
        inputs, features = 512, tuple(64 for _ in features)
    width = inputs * sum(features) * (2 if operation == "swiglu" else 1)
    sets = 1 if quick else -(-COLD // (2 * width))
    keys = iter(jax.random.split(jax.random.key(7), 4 + sets * len(features)))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, jnp.bfloat16)

    def weights() -> Any:
        if operation == "products":
            return tuple(normal(out, inputs) * inputs**-0.5 for out in features)
        out = features[0]
        return normal(*((2, out, inputs) if operation == "swiglu" else (out, inputs))) * inputs**-0.5

    x, rest = normal(tokens, inputs), ()
    if operation == "added":
        rest = normal(tokens, features[0]), normal(features[0])
    elif tokens == 1:
        rest = x, normal(inputs)
        x = jax.random.normal(next(keys), (4, 1, inputs))
    arrays = (x, [weights() for _ in range(sets)], *rest)

    def every(function: Callable, x, sets, *rest):
        if operation == "added":
            return [function(x, each, *rest, eps=EPS) for each in sets]
        token = Unnormed(x, rest[0], rest[1], EPS) if rest else x
        return [function(token, each) for each in sets]

    @functools.cache
    def wanted() -> Any:
        wide = jax.tree.map(lambda each: each.astype(jnp.float32), arrays)
        with jax.default_matmul_precision("highest"):
            return jax.jit(functools.partial(every, getattr(dense_reference, operation)))(*wide)

    def farthest(found: Any, right: Any) -> float:
        return max(map(distance, jax.tree.leaves(found), jax.tree.leaves(right)))

    return [
        Program(
            *(told, each, functools.partial(every, function), arrays),
            bytes=2.0 * width * sets,
            operations=2.0 * width * sets * tokens,
            wanted=wanted,
            error=farthest,
            calls=sets,
        )
        for each, function in functions.items()
    ]


@functools.cache
def random_experts(count: int, inner: int, hidden: int) -> tuple[grouped_matmul.Experts, ExpertTiles]:
    """The same INT4 experts as published and as tiles."""
    keys = iter(jax.random.split(jax.random.key(7), 6))
    place = SingleDeviceSharding(jax.devices()[0])

    def projection(out: int, inputs: int) -> grouped_matmul.Int4:
        words = maker("words", (count, out, inputs // 8), jnp.dtype(jnp.int32), place)(next(keys))
        scale = maker("scales", (count, out, inputs // 32), jnp.dtype(jnp.bfloat16), place)(next(keys))
        return grouped_matmul.Int4(words, scale)

    sizes = ((inner, hidden), (inner, hidden), (hidden, inner))
    published = grouped_matmul.Experts(*(projection(*size) for size in sizes))
    return published, jax.jit(pack)(*published)


def expert_programs(case: cases.Case, turns: int, functions: Mapping[str, Callable]) -> list[Program]:
    """Implementations of the routed experts, by their names, each with the weights in the form that it
    reads.
    """
    everyone = case.experts * (8 if case.routing == "eighth" else 1)
    T, K, E = case.tokens, case.chosen, case.experts
    published, tiled = random_experts(E, case.inner, case.hidden)
    random = np.random.default_rng(7)
    ids = np.stack([random.permutation(everyone)[:K] for _ in range(T)]).astype(np.int32)
    x = jax.random.normal(jax.random.key(7), (T, case.hidden), case.dtype)
    weights = jnp.full((T, K), 1 / K, jnp.float32)
    # An odd step meets every expert before the first comes again.
    step = everyone // 8 + 1 | 1
    calls = [(ids + call * step) % everyone for call in range(turns * CALLS)]
    hit = float(np.mean([len(np.unique(call[call < E])) for call in calls]))

    def routed(ids: jax.Array) -> jax.Array:
        ids = ids % everyone
        return jnp.where(ids < E, ids, -1)

    @functools.cache
    def wanted() -> jax.Array:
        with jax.default_matmul_precision("highest"):
            exact = jax.jit(functools.partial(expert_mlp, rounding="bfloat16"))
            return exact(x.astype(jnp.float32), routed(jnp.asarray(calls[-1])), weights, published)

    def program(name: str, function: Callable) -> Program:
        def called(ids, x, weights, experts):
            return function(x, routed(ids), weights, experts, rounding="bfloat16")

        experts = tiled if name.startswith("mosaic_gpu") else published
        return Program(
            *(case.name, name, called, (jnp.asarray(ids), x, weights, experts)),
            bytes=hit * 3 * case.inner * case.hidden * (0.5 + 2 / 32),
            operations=2.0 * 3 * case.inner * case.hidden * T * K * E / everyone,
            wanted=wanted,
            error=distance,
            step=step,
        )

    return [program(*each) for each in functions.items()]


def with_products_alone(case: cases.Case, turns: int) -> list[Program]:
    """Every implementation of the routed experts, and what the Hopper kernel's products alone take."""
    programs = expert_programs(case, turns, EXPERTS)
    hopper = next(each for each in programs if each.implementation == "mosaic_gpu")
    return [*programs, replace(hopper, implementation="its products alone", function=products(case))]


def products(case: cases.Case) -> Callable:
    """The two products of the Hopper kernel alone, without what is around them: one block a different expert,
    of given rows.
    """
    everyone = case.experts * (8 if case.routing == "eighth" else 1)

    def function(ids, x, weights, experts):
        from pallas_kernels.grouped_matmul.mosaic_kernel import multiply

        sizes = tuning.sizes("grouped_matmul", "mosaic_gpu", mosaic.Sizes)
        multiplied = functools.partial(multiply, stages=sizes.stages)
        assigned = case.tokens * case.chosen
        rows = grouping.rows_a_block(assigned, case.experts, mosaic.FEWEST_ROWS, sizes.most_rows)
        counts = np.ones(assigned, np.int32)
        if case.tokens == 1:
            rows, counts = 1, None

        flat = ids.reshape(-1) % everyone
        earlier = jnp.tri(flat.size, k=-1, dtype=bool) & (flat == flat[:, None])
        blocks = jnp.where((flat < case.experts) & ~jnp.any(earlier, axis=1), flat, -1)
        steps, strips = experts.gate_up.shape[2], experts.down.shape[1]
        token = jnp.broadcast_to(x[:1, None], (1, rows, case.hidden))
        splits = mosaic.splits(steps, flat.size, sizes)
        sums = multiplied(token, blocks, counts, experts.gate_up, splits=splits, result="sums")
        inner = jnp.broadcast_to(x[:1, None, : case.inner], (1, rows, case.inner))
        each = mosaic.strips_each(strips, experts.down.shape[2], case.tokens, sizes)
        y = multiplied(inner, blocks, counts, experts.down, strips_each=each, result="rows")
        return y[0, :1, :1] + sums[0, 0, 0, :1, :1].astype(y.dtype)

    return function


def empty_loop() -> list[Program]:
    """A loop around nothing: what a turn costs before it does anything."""
    x = jnp.ones((), jnp.float32)
    return [Program("empty loop", "xla", lambda x: x, (x,), 0.0, 0.0, lambda: x, distance)]


def distance(found: Any, right: Any) -> float:
    """Norm of the difference over the norm; where the norm is 0, the norm of the difference."""
    found, right = (np.asarray(array, np.float64) for array in (found, right))
    return float(np.linalg.norm(found - right) / (np.linalg.norm(right) or 1.0))


def attempt(function: Callable, *arguments) -> tuple[Any, str | None]:
    """The result and None, or None and what went wrong, in one line: one case must not end the others."""
    try:
        return function(*arguments), None
    except Exception as error:
        lines = str(error).strip().splitlines()
        return None, f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def compiled(program: Program, turns: int) -> Callable:
    """``turns`` times four calls of the program's function in one loop; returns what the last one did.

    Every call's first array has the call's number times the step added, which the compiler does not know, and
    a zero times what the call before it found, of every array one number: what is the same in every call
    would be done once, before the loop, and what nothing waits for not at all.
    """
    shapes = jax.eval_shape(program.function, *program.arrays)

    def loop(step, zero, first, *rest):
        def turn(index, found):
            for call in range(CALLS):
                leaves = jax.lax.optimization_barrier(jax.tree.leaves(found))
                before = sum(leaf.reshape(-1)[0].astype(jnp.float32) for leaf in leaves)
                moved = (index * CALLS + call) * step + (before * zero).astype(jnp.int32)
                found = program.function(first + moved.astype(first.dtype), *rest)
            return found

        return jax.lax.fori_loop(0, turns, turn, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))

    step, zero = jnp.int32(program.step), jnp.float32(0)
    return functools.partial(jax.jit(loop).lower(step, zero, *program.arrays).compile(), step, zero)


def measured(program: Program, loop: Callable, turns: int) -> tuple[float, float | None]:
    """Microseconds a call, median of the loops, and the error of the last call."""
    error = program.error(jax.block_until_ready(loop(*program.arrays)), program.wanted())
    seconds = []
    for _ in range(LOOPS):
        begin = time.perf_counter()
        jax.block_until_ready(loop(*program.arrays))
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) / (turns * CALLS * program.calls) * 1e6, error


def show(rows: list[Row]) -> None:
    """The table on the terminal, and why the rest has no times."""
    table = Table("case", "implementation", "us", "floor us", "x floor", "error")
    for row in rows:
        if row.microseconds is None:
            continue
        times = f"{row.microseconds / row.floor_microseconds:.1f}" if row.floor_microseconds else ""
        table.add_row(
            *(row.case, row.implementation, f"{row.microseconds:.1f}", f"{row.floor_microseconds:.2f}"),
            *(times, "" if row.relative_error is None else f"{row.relative_error:.1e}"),
        )
    Console(width=110).print(table)
    for row in rows:
        if row.failure is not None:
            print(f"not run: {row.case}, {row.implementation}: {row.failure}")


if __name__ == "__main__":
    run(main)
