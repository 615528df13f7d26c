"""Run the cells of a group in turns, and keep what every repetition took."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from jddtree.decoder import Decoder, Task
from jddtree.engine import Engine
from jddtree.exactness import Exactness, compare
from jddtree.finish import Generation
from jddtree.sampling import GREEDY, Sample
from jddtree.state import Method
from jddtree.statistics import Stages
from jddtree.sweep.grid import Cell, Group
from jddtree.sweep.stepwise import Stepwise
from jddtree.sweep.suites import filled


@dataclass(frozen=True)
class Batch:
    """One batch, decoded once. Seconds of rounds run from a chunk's dispatch until its tokens are on the
    host; what the host then does with them (ends of texts, traces for the statistics) is in ``host`` alone.

    prompts: tokens of each row's prompt. rounds: of the whole batch. row_seconds: of rounds, until each row
    had ended.
    """

    prompts: list[int]
    results: list[Generation]
    prefill: float
    seconds: float
    host: float
    rounds: int
    row_seconds: list[float]

    @property
    def tokens(self) -> int:
        """What the rounds emitted: all tokens but a prefill's first one."""
        return sum(len(result.output_ids) - 1 for result in self.results)

    @property
    def seconds_a_token(self) -> float | None:
        """None without rounds."""
        return self.seconds / self.tokens if self.tokens and self.rounds else None


Repetitions = list[list[Batch]]
"""Of a cell: the batches of every repetition."""


@dataclass
class Run:
    """A cell with its programs and its repetitions. problems: for each batch, which prompts it decoded."""

    cell: Cell
    decoder: Decoder
    stepwise: Stepwise | None
    stages: Stages | None
    problems: list[list[int]]
    repetitions: Repetitions = field(default_factory=list)
    checks: list[Exactness] = field(default_factory=list)

    @property
    def compile_seconds(self) -> float:
        return self.decoder.compile_seconds + (self.stepwise.compile_seconds if self.stepwise else 0.0)


def seeded(tasks: Sequence[Task], cell: Cell, seed: int) -> list[Task]:
    """The tasks at a cell's temperature and topk; sampled ones get the seeds ``seed``, ``seed`` + 1, ..."""
    policies = [
        Sample(cell.temperature, seed=seed + number) if cell.temperature > 0 else GREEDY
        for number in range(len(tasks))
    ]
    return [
        replace(task, policy=policy, topk=cell.topk) for task, policy in zip(tasks, policies, strict=True)
    ]


@dataclass(frozen=True)
class Program:
    """What a cell runs: ``stepwise`` if the cell is "ar-stepwise", else ``decoder``."""

    decoder: Decoder
    stepwise: Stepwise | None
    stages: Stages | None


Key = tuple[Method, int, bool]
"""What a program is compiled for: method, rows, and whether texts are sampled. Caps (topk) share programs."""


def compiled(
    engine: Engine,
    tasks: Sequence[Task],
    groups: Sequence[Group],
    *,
    seed: int,
    stages: bool,
    advance: Callable[[str], None],
) -> dict[Key, Program]:
    """Compile all that the groups will run, side by side, since a compilation keeps few cores busy; and all
    of it before anything is measured, which must not share the cores. ``advance`` is told of every program.
    """
    wanted = keys(engine.pair.block_size, groups)
    naive = {
        _key(engine.pair.block_size, cell)
        for group in groups
        for cell in group.cells
        if cell.method == "ar-stepwise"
    }

    def one(key: Key) -> Program:
        method, rows, _ = key
        ready = seeded(tasks, wanted[key], seed)
        decoder = engine.decoder(ready, method=method, rows=rows)
        for batch in filled(len(tasks), rows):
            decoder.compile_for([ready[index] for index in batch])
        stepwise = Stepwise(decoder) if key in naive else None
        return Program(decoder, stepwise, Stages(decoder, ready[0]) if stages else None)

    # The slowest first, so that none is left over at the end.
    order = sorted(wanted, key=lambda key: (key[0].budget, key[1]), reverse=True)
    found: dict[Key, Program] = {}
    pool = ThreadPoolExecutor(max_workers=os.cpu_count())
    try:
        waiting = {pool.submit(one, key): key for key in order}
        for number, done in enumerate(as_completed(waiting), 1):
            found[waiting[done]] = done.result()
            advance(f"compiled {number} of {len(order)} programs")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return found


def keys(block_size: int, groups: Sequence[Group]) -> dict[Key, Cell]:
    """What is to be compiled for the groups, each with a cell that runs it."""
    return {_key(block_size, cell): cell for group in groups for cell in group.cells}


def _key(block_size: int, cell: Cell) -> Key:
    return cell.program(block_size), cell.concurrency, cell.temperature > 0


def measure(
    engine: Engine,
    tasks: Sequence[Task],
    group: Group,
    programs: dict[Key, Program],
    *,
    repetitions: int,
    seed: int,
    advance: Callable[[str], None],
) -> Iterator[Run]:
    """Measure a group whose first cell is plain decoding: one warm-up batch each, then the repetitions in
    turns over the cells. Yields a cell when its last repetition is done and its texts of all repetitions have
    been compared with plain decoding's of this run.

    ``programs``: from `compiled`. ``advance`` is told the name of the batch that comes next (`steps` counts).
    """
    problems = filled(len(tasks), group.concurrency)
    ready = {cell: seeded(tasks, cell, seed) for cell in group.cells}
    runs = []
    for cell in group.cells:
        advance(f"{cell.name}, {cell.concurrency} at a time, warm-up")
        found = programs[_key(engine.pair.block_size, cell)]
        if cell.method == "ar-stepwise":
            run = Run(cell, found.decoder, found.stepwise, None, problems)
        else:
            run = Run(cell, found.decoder, None, found.stages, problems)
        _decode(run, [ready[cell][index] for index in problems[0]])
        runs.append(run)
    plain = runs[0]
    for repetition in range(repetitions):
        for run in runs:
            batches = []
            for chosen in problems:
                advance(f"{run.cell.name}, {run.cell.concurrency} at a time")
                batches.append(_decode(run, [ready[run.cell][index] for index in chosen]))
            run.repetitions.append(batches)
            if repetition == repetitions - 1:
                run.checks = checks(run.repetitions, plain.repetitions)
                yield run
            # Traces are many small lists, and only the last repetition's are looked at.
            for batch in batches:
                for result in batch.results:
                    result.trace, result.experts = [], []


def steps(group: Group, prompts: int, repetitions: int) -> int:
    """How often `measure` calls ``advance``."""
    return len(group.cells) * (1 + repetitions * len(filled(prompts, group.concurrency)))


def checks(ours: Repetitions, plain: Repetitions) -> list[Exactness]:
    """For every text the worst of its repetitions, against plain decoding's first repetition."""
    found: list[list[Exactness]] = []
    for batches in ours:
        found.append(
            [
                compare(mine.output_ids, theirs.output_ids, theirs.margins)
                for batch, reference in zip(batches, plain[0], strict=True)
                for mine, theirs in zip(batch.results, reference.results, strict=True)
            ]
        )
    return [min(texts, key=_closeness) for texts in zip(*found, strict=True)]


def _closeness(check: Exactness) -> tuple[bool, float]:
    """Equal texts are closest, then the smallest gap; a text that merely ends elsewhere is farthest."""
    return bool(check.equal), -float("inf") if check.gap is None else -check.gap


def _decode(run: Run, tasks: Sequence[Task]) -> Batch:
    """Decode a batch once."""
    prompts = [len(task.prompt) for task in tasks]
    if run.stepwise is not None:
        results, prefill, spent = run.stepwise.decode(tasks)
        rounds = max(len(result.acceptance_lengths) for result in results)
        return Batch(prompts, results, prefill, max(spent), 0.0, rounds, spent)
    decoder = run.decoder
    seconds_before, rounds_before = decoder.round_seconds, decoder.rounds
    began = time.perf_counter()
    growing = decoder.decode(tasks)
    results = next(growing)
    prefill = time.perf_counter() - began
    began = time.perf_counter()
    row_seconds: list[float | None] = [0.0 if result.finish_reason else None for result in results]
    for results in growing:
        for row, result in enumerate(results):
            if result.finish_reason and row_seconds[row] is None:
                row_seconds[row] = decoder.round_seconds - seconds_before
    seconds, rounds = decoder.round_seconds - seconds_before, decoder.rounds - rounds_before
    host = time.perf_counter() - began - seconds
    return Batch(prompts, results, prefill, seconds, host, rounds, [each or 0.0 for each in row_seconds])
