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


def measure(
    engine: Engine,
    tasks: Sequence[Task],
    group: Group,
    *,
    repetitions: int,
    seed: int,
    stages: bool,
    advance: Callable[[str], None],
) -> Iterator[Run]:
    """Measure a group whose first cell is plain decoding: compile all, one warm-up batch each, then the
    repetitions in turns over the cells. Yields a cell when its last repetition is done and its texts of all
    repetitions have been compared with plain decoding's of this run.

    ``advance`` is told the name of what comes next: a compilation or a batch (`steps` counts them).
    """
    problems = filled(len(tasks), group.concurrency)
    ready = {cell: seeded(tasks, cell, seed) for cell in group.cells}

    def compiled(method: Method) -> tuple[Decoder, Stages | None]:
        cell = next(cell for cell in group.cells if cell.program(engine.pair.block_size) == method)
        decoder = engine.decoder(ready[cell], method=method, rows=group.concurrency)
        for batch in problems:
            decoder.compile_for([ready[cell][index] for index in batch])
        return decoder, Stages(decoder, ready[cell][0]) if stages else None

    # Side by side, as a compilation keeps few cores busy; of topk programs know nothing.
    methods = [cell.program(engine.pair.block_size) for cell in group.cells]
    programs: dict[Method, tuple[Decoder, Stages | None]] = {}
    pool = ThreadPoolExecutor(max_workers=os.cpu_count())
    try:
        advance(f"compiling {len(set(methods))} programs, {group.concurrency} at a time")
        waiting = {pool.submit(compiled, method): method for method in set(methods)}
        for done in as_completed(waiting):
            programs[waiting[done]] = done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    runs = []
    for cell, method in zip(group.cells, methods, strict=True):
        advance(f"{cell.name}, {cell.concurrency} at a time, warm-up")
        decoder, timer = programs[method]
        stepwise = Stepwise(decoder) if cell.method == "ar-stepwise" else None
        run = Run(cell, decoder, stepwise, None if stepwise else timer, problems)
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
    return 1 + len(group.cells) * (1 + repetitions * len(filled(prompts, group.concurrency)))


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
