"""Compiled programs for one pair, and the host's side of the loop: prompts in, tokens out by chunks."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jddtree import sharding
from jddtree.decode import decode_chunk, prefill
from jddtree.errors import InputError
from jddtree.finish import Generation, Row
from jddtree.gpu_graphs import graph_options
from jddtree.models.drafter import Drafter
from jddtree.models.target import Target
from jddtree.sampling import GREEDY, Mode, Policy, stack
from jddtree.state import GREEDY_ONLY, DecodeState, Method, Options, Request, new_state, state_specs
from jddtree.tokenizer import Tokenizer
from jddtree.wording import counted
from pallas_kernels.dispatch import traced_kernels

CHUNKS = (32, 256)
"""Prompt tokens a prefill program takes: few sizes, so that a new prompt length compiles nothing new."""

ROUNDS = {"cpu": 1}
"""Rounds in one dispatch at most, between two looks of the host, by platform; 64 on others. On a CPU a
dispatch costs little, and the compiler makes faster programs outside of loops. On a GPU it costs some
milliseconds, in which the device waits.
"""

FIRST_ROUNDS = 8
"""In the first dispatch of a decoding, so that there is text soon; every other has twice as many as the last,
but where there are stop strings.
"""


def most_rounds(platform: str) -> int:
    """See `ROUNDS`."""
    return ROUNDS.get(platform, 64)


@dataclass(frozen=True)
class Task:
    """What one row is to do.

    prompt: token ids. max_new: tokens to generate, at least 1. policy: how tokens are chosen. budget: nodes a
    round may verify, up to the compiled number (None: that number). topk: children a tree node may have
    (None: no cap). stop_ids, stop_strings: what ends the text. max_context: tokens of prompt and output
    (None: the target's limit). name: what errors call it.
    """

    prompt: Sequence[int]
    max_new: int = 256
    policy: Policy = GREEDY
    budget: int | None = None
    topk: int | None = None
    stop_ids: Sequence[int] = ()
    stop_strings: Sequence[str] = ()
    max_context: int | None = None
    name: str = "prompt"

    def limit(self, max_position: int) -> int:
        """Most tokens of prompt and output, for a target of ``max_position`` positions."""
        return max_position if self.max_context is None else min(self.max_context, max_position)

    def tokens(self, max_position: int) -> int:
        """How many tokens prompt and output can come to."""
        return min(len(self.prompt) + self.max_new, self.limit(max_position))


def slots_for(tokens: int) -> int:
    """Cache slots for a text of ``tokens`` tokens: a power of two, so that few sizes are ever compiled."""
    return max(1024, 1 << (tokens - 1).bit_length())


class Prefills:
    """Programs that read prompts, by their width. Decoders of the same pair, depth, rows, slots and options
    read prompts alike and may share them, in several threads too.
    """

    def __init__(self) -> None:
        self._programs: dict[int, jax.stages.Compiled] = {}
        self._lock = Lock()

    def get(self, width: int, make: Callable[[], jax.stages.Compiled]) -> jax.stages.Compiled:
        """The program for ``width`` prompt tokens, made on its first use."""
        with self._lock:
            if width not in self._programs:
                self._programs[width] = make()
            return self._programs[width]


class Decoder:
    """One pair and one method, compiled ahead of time for a number of rows and cache slots.

    A pair whose weights are spread over a mesh is decoded on it, in one program for all its devices.
    Nothing is compiled while decoding but a prefill size on its first use. ``compile_seconds`` adds up what
    compiling took, ``rounds`` and ``round_seconds`` what was decoded: from a chunk's dispatch until its
    tokens are on the host. ``kernels`` says which implementation of each operation the programs hold.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        method: Method,
        *,
        rows: int,
        slots: int,
        dtype: jnp.dtype,
        options: Options = GREEDY_ONLY,
        rounds: int | None = None,
        prefills: Prefills | None = None,
    ):
        self.method, self.rows, self.slots, self.options = method, rows, slots, options
        self.vocab_size, self.max_position = target.config.vocab_size, target.config.max_position
        self.compile_seconds, self.round_seconds, self.rounds = 0.0, 0.0, 0
        self.kernels: dict[str, str] = {}
        # Flattened once: a compiled call should not walk the modules again.
        self._weights, self._modules = jax.tree.flatten((target, drafter))
        self._mesh = sharding.mesh_of(self._weights)
        self._layout = sharding.layout_of(self._mesh)
        if rows % self._layout.data:
            raise InputError(
                f"layout {self._layout}: {counted(rows, 'row')} cannot be shared by {self._layout.data}"
            )
        self._weight_specs = [leaf.sharding.spec for leaf in self._weights] if self._mesh else None
        empty = partial(new_state, target, drafter, method, rows // self._layout.data, slots, dtype)
        self._state_specs = state_specs(self._layout, target, drafter, jax.eval_shape(empty))
        self._empty = jax.jit(self._on_mesh(empty, (), self._state_specs))
        self._prefills = prefills or Prefills()
        self._most_rounds = rounds or most_rounds(jax.default_backend())
        self._chunk = self._compile(
            partial(decode_chunk, rounds=self._most_rounds),
            jax.ShapeDtypeStruct((rows,), jnp.int32),
            results=2,
        )

    def compile_for(self, tasks: Sequence[Task]) -> None:
        """Compile the prefill sizes that these prompts need, so that decoding them compiles nothing."""
        for _, width in _prompt_chunks(max(len(task.prompt) for task in tasks)):
            self.prefill_program(width)

    def exchange(self, drafter: Drafter) -> None:
        """Go on with another drafter of the same form, without compiling anything.

        Raises:
          ValueError: its form is another one.
        """
        weights, modules = jax.tree.flatten((self.models[0], drafter))
        if modules != self._modules:
            raise ValueError("the programs were compiled for another form of drafter")
        self._weights = weights

    def decode(
        self,
        tasks: Sequence[Task],
        tokenizer: Tokenizer | None = None,
        read: Callable[[int, int], object] | None = None,
    ) -> Generator[list[Generation]]:
        """Decode up to ``rows`` tasks, yielding after the prefill and after every chunk of rounds.

        The same list is yielded each time, one Generation a task, grown by what the step added. The host
        fetches once a step. A caller may set a row's ``finish_reason`` to end it: that row becomes inert at
        the next chunk. Closing the generator ends all rows with "cancelled". ``read`` is told after every
        prefill chunk how many tokens of how many the longest prompt has behind it.

        Raises:
          InputError: a task does not fit the target, this decoder's rows, slots, budget or mode.
        """
        self._check(tasks)
        # On the device once: every chunk reads it.
        request = self._placed(self._request(tasks))
        request = jax.device_put(request) if self._mesh is None else request
        rows = [Row(task.name, len(task.prompt), tokenizer, task.stop_strings) for task in tasks]
        results = [row.result for row in rows]
        state = self._prefill_all(tasks, request, rows, read)
        limit = FIRST_ROUNDS
        # Only the host sees stop strings: what is decoded past one is for nothing.
        most = limit if any(task.stop_strings for task in tasks) else self._most_rounds
        try:
            yield results
            while not all(row.finished for row in rows):
                allowed = np.zeros((self.rows,), np.int32)
                allowed[: len(rows)] = [0 if row.finished else limit for row in rows]
                limit = min(2 * limit, most)
                began = time.perf_counter()
                state, reports, done = self._chunk(self._weights, request, state, self._placed(allowed))
                reports, done = jax.device_get((reports, done))
                self.round_seconds += time.perf_counter() - began
                self.rounds += int(done)
                for index in range(int(done)):
                    report = jax.tree.map(itemgetter(index), reports)
                    for number, row in enumerate(rows):
                        row.add(report, number, in_round=True)
                yield results
        finally:
            for row in rows:
                if not row.finished:
                    row.finish("cancelled")

    def prefilled(self, tasks: Sequence[Task]) -> tuple[Target, Drafter | None, Request, DecodeState]:
        """The models, the request and the state after the tasks' prompts, for loops other than `decode`."""
        self._check(tasks)
        target, drafter = self.models
        request = self._placed(self._request(tasks))
        rows = [Row(each.name, len(each.prompt), None, ()) for each in tasks]
        return target, drafter, request, self._prefill_all(tasks, request, rows, None)

    @property
    def models(self) -> tuple[Target, Drafter | None]:
        """The pair."""
        return jax.tree.unflatten(self._modules, self._weights)

    @property
    def abstract_state(self) -> DecodeState:
        """The state's shapes and dtypes."""
        return jax.eval_shape(self._empty)

    @property
    def program_bytes(self) -> int | None:
        """Device memory that the rounds' program needs: weights, state, results and scratch. None where the
        compiler does not tell.
        """
        size = self._chunk.memory_analysis()
        return size and (
            size.argument_size_in_bytes
            + size.output_size_in_bytes
            + size.temp_size_in_bytes
            - size.alias_size_in_bytes
        )

    @property
    def compiler_options(self) -> dict[str, str]:
        """What the compiler is told for this pair's programs."""
        if self._mesh is None:
            return graph_options(jax.default_backend(), 1, self.kernels)
        return graph_options(self._mesh.devices.flat[0].platform, self._mesh.size, self.kernels)

    def _on_mesh(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """``function`` of every device's own parts as one of whole arrays."""
        if self._mesh is None:
            return function
        # Unchecked: the checker cannot follow loops whose end depends on what all devices have agreed on.
        return jax.shard_map(
            function, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    def _shardings(self, specs: Any) -> Any:
        mesh = self._mesh
        assert mesh is not None
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)

    def _placed(self, tree: Any) -> Any:
        """Arrays of all rows, which every process has, where a mesh wants them."""
        if self._mesh is None:
            return tree

        def place(array: np.ndarray, where: NamedSharding) -> jax.Array:
            return jax.make_array_from_callback(array.shape, where, array.__getitem__)

        return jax.tree.map(place, tree, self._shardings(sharding.row_specs(self._layout, tree)))

    def _compile(
        self, function: Callable, *arguments: jax.ShapeDtypeStruct, results: int = 1
    ) -> jax.stages.Compiled:
        """Compile function(target, drafter, request, state, *arguments) with the state donated. It returns
        the state and so many more ``results``, which every device has in full.
        """

        def program(weights, request, state, *rest):
            target, drafter = jax.tree.unflatten(self._modules, weights)
            # The partitioner (jaxlib 0.11.2) crashes on an empty argument that a loop carries.
            state = jax.tree.map(lambda leaf: leaf if leaf.size else jnp.zeros_like(leaf), state)
            return function(target, drafter, request, state, *rest, method=self.method, options=self.options)

        begin = time.perf_counter()
        request = self._request([Task(())] * self.rows)
        request = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), request)
        state = self.abstract_state
        rows = sharding.row_specs(self._layout, (request, arguments))
        specs = (self._weight_specs, rows[0], self._state_specs, *rows[1])
        whole = self._on_mesh(program, specs, (self._state_specs, *[PartitionSpec()] * results))
        where = None if self._mesh is None else self._shardings(specs)
        with traced_kernels() as ran:
            jitted = jax.jit(whole, donate_argnums=2, in_shardings=where)
            lowered = jitted.lower(self._weights, request, state, *arguments)
        self.kernels |= ran
        compiled = lowered.compile(self.compiler_options)
        self.compile_seconds += time.perf_counter() - begin
        return compiled

    @property
    def program(self) -> jax.stages.Compiled:
        """What one dispatch of `decode` runs: some rounds."""
        return self._chunk

    def prefill_program(self, width: int) -> jax.stages.Compiled:
        """What commits up to ``width`` prompt tokens; compiled on first use."""
        return self._prefills.get(
            width,
            lambda: self._compile(
                prefill,
                jax.ShapeDtypeStruct((self.rows, width), jnp.int32),
                jax.ShapeDtypeStruct((self.rows,), jnp.int32),
                jax.ShapeDtypeStruct((self.rows,), jnp.bool_),
            ),
        )

    def _check(self, tasks: Sequence[Task]) -> None:
        if not 1 <= len(tasks) <= self.rows:
            raise InputError(f"{counted(len(tasks), 'prompt')} for a decoder of {counted(self.rows, 'row')}")
        mode = Mode.of([task.policy for task in tasks])
        if (mode.sampled, mode.cuts) > (self.options.mode.sampled, self.options.mode.cuts):
            raise InputError(
                "this decoder was compiled for greedy rows or without cuts; compile one that samples"
            )
        for task in tasks:
            check_task(task, self.vocab_size, self.max_position, self.method.budget)
            if task.tokens(self.max_position) > self.slots:
                raise InputError(
                    f"{task.name}: {len(task.prompt)} prompt tokens and {task.max_new} new ones do not fit "
                    f"the {self.slots} cache slots"
                )

    def _request(self, tasks: Sequence[Task]) -> Request:
        """The tasks as arrays, rows without a task filled up."""
        every = list(tasks) + [Task(())] * (self.rows - len(tasks))
        stop = np.zeros((self.rows, self.vocab_size), bool)
        for row, task in enumerate(every):
            stop[row, [token for token in task.stop_ids if 0 <= token < self.vocab_size]] = True

        def array(values) -> np.ndarray:
            return np.array(list(values), np.int32)

        return Request(
            max_new=array(task.tokens(self.max_position) - len(task.prompt) for task in every),
            max_position=array(task.limit(self.max_position) for task in every),
            budget=array(self.method.budget if task.budget is None else task.budget for task in every),
            topk=array(self.vocab_size if task.topk is None else task.topk for task in every),
            stop=stop,
            sampling=stack([task.policy for task in every], self.vocab_size),
        )

    def _prefill_all(
        self,
        tasks: Sequence[Task],
        request: Request,
        rows: Sequence[Row],
        read: Callable[[int, int], object] | None,
    ) -> DecodeState:
        """Commit the prompts chunk by chunk and give every row its first token."""
        state = self._empty()
        lengths = np.zeros((self.rows,), np.int32)
        lengths[: len(tasks)] = [len(task.prompt) for task in tasks]
        reports = []
        for begin, width in _prompt_chunks(int(lengths.max())):
            ids = np.zeros((self.rows, width), np.int32)
            for row, task in enumerate(tasks):
                part = list(task.prompt[begin : begin + width])
                ids[row, : len(part)] = part
            count = np.clip(lengths - begin, 0, width).astype(np.int32)
            last = (count > 0) & (begin + count == lengths)
            chunk = self._placed((ids, count, last))
            state, report = self.prefill_program(width)(self._weights, request, state, *chunk)
            reports.append((report, last))
            if read is not None:
                jax.block_until_ready(report)
                read(min(begin + width, int(lengths.max())), int(lengths.max()))
        for report, last in jax.device_get(reports):
            for row in np.flatnonzero(last).tolist():
                rows[row].add(report, row, in_round=False)
        return state


def _prompt_chunks(length: int) -> Iterator[tuple[int, int]]:
    """Each prefill chunk's begin and width: the widest size, then the smallest that holds the rest."""
    begin = 0
    while begin < length:
        width = next((size for size in CHUNKS if size >= length - begin), CHUNKS[-1])
        yield begin, width
        begin += width


def check_ids(ids: Sequence[int], vocab_size: int, what: str) -> None:
    """Raise InputError if an id is outside the vocabulary; ``what`` says what kind of id it is."""
    outside = [token for token in ids if not 0 <= token < vocab_size]
    if outside:
        raise InputError(f"{what} {outside[0]} is outside the vocabulary, 0 to {vocab_size - 1}")


def check_prompt(prompt: Sequence[int], vocab_size: int, limit: int, name: str) -> None:
    """Raise InputError unless the prompt is not empty, inside the vocabulary, and leaves room for a token."""
    if not len(prompt):
        raise InputError(f"{name} is empty: give at least one token")
    check_ids(prompt, vocab_size, f"{name}: token id")
    if len(prompt) >= limit:
        raise InputError(
            f"{name} has {len(prompt)} tokens; a context of {limit} leaves no room for an answer"
        )


def check_task(task: Task, vocab_size: int, max_position: int, budget: int) -> None:
    """Raise InputError unless the task's prompt leaves room for a token and its numbers are in range."""
    name = task.name
    check_prompt(task.prompt, vocab_size, task.limit(max_position), name)
    if task.max_new < 1:
        raise InputError(f"{name}: max_new must be at least 1, not {task.max_new}")
    if task.topk is not None and task.topk < 1:
        raise InputError(f"{name}: topk must be at least 1, not {task.topk}")
    if task.budget is not None and not 0 <= task.budget <= budget:
        raise InputError(f"{name}: budget must be 0 to {budget}, not {task.budget}")
