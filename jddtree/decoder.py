"""Compiled programs for one pair, and the host's side of the loop: prompts in, tokens out by chunks."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np

from jddtree.decode import (
    LENGTH,
    RUNNING,
    STOP,
    DecodeState,
    Method,
    Report,
    Request,
    decode_chunk,
    new_state,
    prefill,
)
from jddtree.errors import InputError
from jddtree.models.drafter import Drafter
from jddtree.models.target import Target
from jddtree.sampling import Greedy
from pallas_kernels.dispatch import traced_kernels

CHUNKS = (32, 256)
"""Prompt tokens a prefill program takes: few sizes, so that a new prompt length compiles nothing new."""

ROUNDS = 8
"""Rounds in one dispatch, between two looks of the host."""

REASONS = {RUNNING: None, STOP: "stop", LENGTH: "length"}


@dataclass
class Generation:
    """One row's result so far.

    output_ids: generated tokens. margins: the target's top-1 minus top-2 logit at each of them.
    acceptance_lengths: root + accepted nodes a round, overrun included; the prefill's token is in no round.
    trace: each round's tree (tokens, parents, depths; slot 0 is the anchor) and accepted slots.
    finish_reason: "stop", "length", None while unfinished.
    """

    output_ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    acceptance_lengths: list[int] = field(default_factory=list)
    trace: list[dict] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def committed_per_round(self) -> float | None:
        """Mean acceptance length; None without rounds."""
        lengths = self.acceptance_lengths
        return sum(lengths) / len(lengths) if lengths else None

    def add(self, report: Report, row: int, *, in_round: bool) -> None:
        """Take over what one round (or the prefill) did for row ``row``; ``report`` holds host arrays."""
        kept = int(report.kept[row])
        if in_round and report.accepted[row]:
            width = int(report.tree_count[row]) + 1
            self.acceptance_lengths.append(int(report.accepted[row]))
            self.trace.append(
                {
                    "tokens": report.tree_tokens[row, :width].tolist(),
                    "parents": report.tree_parents[row, :width].tolist(),
                    "depths": report.tree_depths[row, :width].tolist(),
                    "accepted": report.slots[row, : int(report.accepted[row])].tolist(),
                }
            )
        self.output_ids += report.tokens[row, :kept].tolist()
        self.margins += report.margins[row, :kept].tolist()
        self.finish_reason = REASONS[int(report.reason[row])]


def slots_for(tokens: int) -> int:
    """Cache slots for a text of ``tokens`` tokens: a power of two, so that few sizes are ever compiled."""
    return max(1024, 1 << (tokens - 1).bit_length())


def new_request(
    rows: int, vocab_size: int, *, max_new: int, max_position: int, stop_ids: Sequence[int], topk: int | None
) -> Request:
    """The same wishes for every row; ``topk`` None does not cap a node's children."""
    stop = np.zeros((rows, vocab_size), bool)
    stop[:, [token for token in stop_ids if 0 <= token < vocab_size]] = True
    every = partial(np.full, (rows,), dtype=np.int32)
    return Request(
        max_new=every(max_new),
        max_position=every(max_position),
        topk=every(vocab_size if topk is None else topk),
        stop=stop,
    )


class Decoder:
    """One pair and one method, compiled ahead of time for a number of rows and cache slots.

    Nothing is compiled while decoding but a prefill size on its first use. ``compile_seconds`` adds up what
    compiling took; ``kernels`` says which implementation of each operation the programs hold.
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
        rounds: int = ROUNDS,
    ):
        self.method, self.rows, self.slots = method, rows, slots
        self.vocab_size, self.max_position = target.config.vocab_size, target.config.max_position
        self.compile_seconds = 0.0
        self.kernels: dict[str, str] = {}
        # Flattened once: a compiled call should not walk the modules again.
        self._weights, self._modules = jax.tree.flatten((target, drafter))
        self._options = {"method": method, "policy": Greedy()}
        self._empty = jax.jit(partial(new_state, target, drafter, method, rows, slots, dtype))
        self._prefills: dict[int, jax.stages.Compiled] = {}
        self._chunk = self._compile(partial(decode_chunk, rounds=rounds))

    def _compile(self, function, *arguments: jax.ShapeDtypeStruct) -> jax.stages.Compiled:
        """Compile function(target, drafter, request, state, *arguments) with the state donated."""

        def program(weights, request, state, *rest):
            target, drafter = jax.tree.unflatten(self._modules, weights)
            return function(target, drafter, request, state, *rest, **self._options)

        begin = time.perf_counter()
        request = new_request(self.rows, self.vocab_size, max_new=1, max_position=1, stop_ids=(), topk=None)
        state = jax.eval_shape(self._empty)
        with traced_kernels() as ran:
            lowered = jax.jit(program, donate_argnums=2).lower(self._weights, request, state, *arguments)
        compiled = lowered.compile()
        self.kernels |= ran
        self.compile_seconds += time.perf_counter() - begin
        return compiled

    def _prefill(self, width: int) -> jax.stages.Compiled:
        if width not in self._prefills:
            rows = (self.rows,)
            self._prefills[width] = self._compile(
                prefill,
                jax.ShapeDtypeStruct((self.rows, width), jnp.int32),
                jax.ShapeDtypeStruct(rows, jnp.int32),
                jax.ShapeDtypeStruct(rows, jnp.bool_),
            )
        return self._prefills[width]

    def compile_for(self, prompts: Sequence[Sequence[int]]) -> None:
        """Compile the prefill sizes that these prompts need, so that decoding them compiles nothing."""
        for _, width in _prompt_chunks(max(map(len, prompts))):
            self._prefill(width)

    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new: int,
        stop_ids: Sequence[int] = (),
        topk: int | None = None,
        max_context: int | None = None,
    ) -> Iterator[list[Generation]]:
        """Decode the prompts, yielding after the prefill and after every chunk of rounds.

        The same list is yielded each time, one Generation a row, grown by what the step added. The host
        fetches once a step. Ends when every row has finished: at a stop token, after ``max_new`` tokens, or
        where the next token would sit past ``max_context`` (default: the target's own limit).

        Raises:
          InputError: a prompt is empty, has an id outside the vocabulary, or leaves no room in the context.
        """
        limit = min(max_context or self.max_position, self.max_position)
        longest = max(map(len, prompts))
        for prompt in prompts:
            check_prompt(prompt, self.vocab_size, limit)
        if max_new < 1:
            raise InputError(f"max_new must be at least 1, not {max_new}")
        request = new_request(
            self.rows, self.vocab_size, max_new=max_new, max_position=limit, stop_ids=stop_ids, topk=topk
        )
        room = limit - np.array([len(prompt) for prompt in prompts], np.int32)
        request.max_new[:] = np.minimum(request.max_new, room)
        if longest + max_new > self.slots and longest + int(request.max_new.max()) > self.slots:
            raise InputError(
                f"a prompt of {longest} tokens and {max_new} new ones do not fit the {self.slots} cache slots"
            )
        generations = [Generation() for _ in prompts]
        state = self._prefill_all(prompts, request, generations)
        yield generations
        while any(generation.finish_reason is None for generation in generations):
            state, reports, done = self._chunk(self._weights, request, state)
            reports, done = jax.device_get((reports, done))
            for index in range(int(done)):
                report = jax.tree.map(itemgetter(index), reports)
                for row, generation in enumerate(generations):
                    generation.add(report, row, in_round=True)
            yield generations

    def _prefill_all(
        self, prompts: Sequence[Sequence[int]], request: Request, generations: list[Generation]
    ) -> DecodeState:
        """Commit the prompts chunk by chunk and put each row's first token into its Generation."""
        state = self._empty()
        lengths = np.array([len(prompt) for prompt in prompts])
        reports = []
        for begin, width in _prompt_chunks(int(lengths.max())):
            ids = np.zeros((self.rows, width), np.int32)
            for row, prompt in enumerate(prompts):
                part = prompt[begin : begin + width]
                ids[row, : len(part)] = part
            count = np.clip(lengths - begin, 0, width).astype(np.int32)
            last = (count > 0) & (begin + count == lengths)
            state, report = self._prefill(width)(self._weights, request, state, ids, count, last)
            reports.append((report, last))
        for report, last in jax.device_get(reports):
            for row in np.flatnonzero(last).tolist():
                generations[row].add(report, row, in_round=False)
        return state


def _prompt_chunks(length: int) -> Iterator[tuple[int, int]]:
    """Each prefill chunk's begin and width: the widest size, then the smallest that holds the rest."""
    begin = 0
    while begin < length:
        width = next((size for size in CHUNKS if size >= length - begin), CHUNKS[-1])
        yield begin, width
        begin += width


def check_prompt(prompt: Sequence[int], vocab_size: int, limit: int) -> None:
    """Raise InputError unless the prompt is not empty, inside the vocabulary, and leaves room for a token."""
    if not prompt:
        raise InputError("the prompt is empty: give at least one token")
    outside = [token for token in prompt if not 0 <= token < vocab_size]
    if outside:
        raise InputError(f"token id {outside[0]} is outside the vocabulary, 0 to {vocab_size - 1}")
    if len(prompt) >= limit:
        raise InputError(
            f"the prompt has {len(prompt)} tokens; the context of {limit} leaves no room for an answer"
        )
