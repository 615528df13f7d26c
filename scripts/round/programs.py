"""Loops around rounds, passes and stages of a model, each one program that is dispatched a few times.

A turn of a loop must not do what the turn before it did: a compiler would do it once, before the loop. So
every turn moves its inputs by a zero that the compiler does not know, or goes on from the last one's state.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array

from jddtree import cache, decode, tree
from jddtree.config import KimiK2Config
from jddtree.decoder import Decoder, slots_for
from jddtree.sampling import GREEDY, stack
from jddtree.state import GREEDY_ONLY, RUNNING, DecodeState, Method, Request, new_state
from pallas_kernels.dispatch import traced_kernels
from scripts.random_weights import maker
from scripts.round.models import Models

ROOM = 1024
"""Cache slots for what the rounds commit."""

STRIDE = 7919
"""By how much a drafted token's id grows from turn to turn."""

Carry = Any


@dataclass(frozen=True)
class Ready:
    """A compiled program. ``run``: one dispatch; takes the weights and what is carried on, which is donated,
    and gives what is carried on and what is to be looked at. ``implementations``: of its operations.
    """

    run: Callable[[list[jax.Array], Carry], tuple[Carry, Any]]
    compiled: jax.stages.Compiled
    implementations: dict[str, str]
    seconds: float


@dataclass(frozen=True)
class Program:
    """A loop of ``turns`` turns over ``width`` verify slots, from ``tokens`` committed ones.

    compile: on abstract weights. begin: makes what the first dispatch starts from. bytes: that a turn must
    read, given what the dispatches gave. uniform: experts of a layer that uniform routing would hit.
    """

    name: str
    context: int
    tokens: int
    width: int
    turns: int
    compile: Callable[[], Ready]
    begin: Callable[[], Carry]
    bytes: Callable[[list[Any]], float]
    uniform: float | None = None


@dataclass(frozen=True)
class Setting:
    """A model behind so many tokens, the same every time: of random keys and values."""

    models: Models
    context: int
    turns: int

    @property
    def slots(self) -> int:
        """Of the caches."""
        return slots_for(self.context + ROOM)

    @property
    def tokens(self) -> int:
        """Committed ones at the start."""
        return self.context

    @property
    def weights(self) -> list[jax.ShapeDtypeStruct]:
        """The pair's arrays."""
        return jax.tree.leaves((self.models.target, self.models.drafter))

    def pair(self, weights: list[jax.Array]) -> Any:
        """The target and drafter of some weights."""
        return jax.tree.unflatten(jax.tree.structure((self.models.target, self.models.drafter)), weights)

    def shape(self, method: Method) -> DecodeState:
        """Of the state."""
        m = self.models
        return jax.eval_shape(partial(new_state, m.target, m.drafter, method, 1, self.slots, m.dtype))

    def state(self, method: Method) -> DecodeState:
        """After `tokens` tokens; the drafter knows them all."""
        shape, place = self.shape(method), SingleDeviceSharding(jax.devices()[0])
        random = np.random.default_rng(3)
        tokens = random.integers(0, self.models.target.config.vocab_size, shape.tokens.shape, np.int32)

        def numbers(model_cache: Any, seed: int) -> Any:
            leaves, structure = jax.tree.flatten(model_cache)
            keys = jax.random.split(jax.random.key(seed), max(1, len(leaves)))
            made = [
                maker("numbers", leaf.shape, leaf.dtype, place)(key)
                for leaf, key in zip(leaves, keys, strict=False)
            ]
            return jax.tree.unflatten(structure, made)

        return DecodeState(
            tokens=jnp.asarray(tokens),
            lengths=jnp.full((1,), self.tokens, jnp.int32),
            target_cache=numbers(shape.target_cache, 5),
            drafter_cache=numbers(shape.drafter_cache, 6),
            features=jnp.zeros(shape.features.shape, shape.features.dtype),
            feature_count=jnp.zeros((1,), jnp.int32),
            emitted=jnp.zeros((1,), jnp.int32),
            reason=jnp.full((1,), RUNNING, jnp.int32),
        )

    def request(self, budget: int) -> Request:
        """Greedy, without any end."""
        config = self.models.target.config

        def number(value: int) -> np.ndarray:
            return np.full((1,), value, np.int32)

        return Request(
            max_new=number(config.max_position),
            max_position=number(config.max_position),
            budget=number(budget),
            topk=number(config.vocab_size),
            stop=np.zeros((1, config.vocab_size), bool),
            sampling=stack([GREEDY], config.vocab_size),
        )

    def reads(self, width: int) -> float:
        """Bytes of a pass of the target, were experts hit as uniform routing hits them."""
        return self.models.holdings(self.slots).verify(width, self.tokens).total


def rounds(setting: Setting, name: str, method: Method) -> Program:
    """Whole rounds in the loop that ships. Looks at the reports."""

    def compile_() -> Ready:
        m = setting.models
        decoder = Decoder(
            *(m.target, m.drafter, method),
            rows=1,
            slots=setting.slots,
            dtype=m.dtype,
            rounds=setting.turns,
        )
        given = setting.request(method.budget), np.full((1,), setting.turns, np.int32)
        request, allowed = jax.device_put(given)

        def run(weights, carry):
            state, reports, _ = decoder.program(weights, request, carry, allowed)
            return state, reports

        return Ready(run, decoder.program, decoder.kernels, decoder.compile_seconds)

    reads = setting.reads(method.budget + 1)
    if method.depth:
        reads += setting.models.holdings(setting.slots).draft(setting.tokens).total
    return Program(
        *(name, setting.context, setting.tokens, method.budget + 1, setting.turns, compile_),
        begin=lambda: setting.state(method),
        bytes=lambda _: reads,
    )


def passes(setting: Setting, width: int) -> Program:
    """The target alone: verify, accept and commit over a tree of ``width`` slots, the plain step where that
    is 1.

    Carries the state, the tree, logits and experts; looks at the last two: [turns, 1, V] of every turn of the
    plain step, [1, N, V] of another's first one; [turns, layers, N, K].
    """
    m, request, kept = setting.models, setting.request(width - 1), setting.turns if width == 1 else 1
    method = Method("tree", width - 1, m.depth if width > 1 else 0)
    config = m.target.config
    assert isinstance(config, KimiK2Config)
    moe = sum(config.is_moe(layer) for layer in range(config.num_layers))
    hit = (setting.turns, moe, width, config.experts_per_token)

    def begin() -> Carry:
        logits = jnp.zeros((kept, width, config.vocab_size), jnp.float32)
        return setting.state(method), random_tree(setting, width), logits, jnp.zeros(hit, jnp.int32)

    def turn(pair, request, carry, index, _):
        state, candidates, logits, experts = carry
        anchor = cache.take(state.tokens, state.lengths[:, None])
        drafted = (candidates.tokens[:, 1:] + STRIDE * index) % config.vocab_size
        slots = replace(candidates, tokens=jnp.concatenate([anchor, drafted], axis=1))
        passed, found = decode.verify(pair[0], None, state, slots, method)
        active = state.reason == RUNNING
        outcome = decode.accept(
            request, state, slots, found, state.lengths, active, method.depth, GREEDY_ONLY
        )
        logits = logits.at[index].set(found[0], mode="drop")
        experts = experts.at[index].set(jnp.concatenate(passed.experts))
        return decode.commit(state, state.drafter_cache, passed, outcome), candidates, logits, experts

    holdings = m.holdings(setting.slots)
    uniform = holdings.distinct(width)
    assert uniform is not None
    share = sum(each.bytes for each in holdings.weights if "experts" in each.kind) / config.num_experts

    def read(found: list[Any]) -> float:
        return setting.reads(width) + share * (distinct([experts for _, experts in found]) - uniform)

    made = _looped(
        ("plain step" if width == 1 else "verify", width),
        setting,
        turn,
        fixed=lambda: request,
        begin=begin,
        look=lambda carry: (carry[2], carry[3]),
        read=read,
        turns=setting.turns,
    )
    return replace(made, uniform=uniform)


def stages(setting: Setting, method: Method) -> list[Program]:
    """The stages of a round, each a loop of its own."""
    m, width = setting.models, method.budget + 1
    assert m.drafter is not None
    drafter, vocabulary = m.drafter, m.target.config.vocab_size
    request, holdings = setting.request(method.budget), m.holdings(setting.slots)
    drafted, verified = (jax.ShapeDtypeStruct((1, n, vocabulary), jnp.float32) for n in (m.depth, width))
    passed, _ = jax.eval_shape(
        lambda pair, state, candidates: decode.verify(pair[0], pair[1], state, candidates, method),
        (m.target, m.drafter),
        setting.shape(method),
        jax.eval_shape(lambda: random_tree(setting, width)),
    )

    def logits(shape: jax.ShapeDtypeStruct) -> Array:
        return 3 * jax.random.normal(jax.random.key(9), shape.shape, shape.dtype)

    def accept(request, state, candidates, found) -> decode.Outcome:
        active = jnp.ones((1,), bool)
        return decode.accept(
            request, state, candidates, found, state.lengths, active, method.depth, GREEDY_ONLY
        )

    outcome = jax.eval_shape(
        accept, request, setting.shape(method), jax.eval_shape(lambda: random_tree(setting, width)), verified
    )

    def zeros(shapes: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def draft_turn(pair, _, carry, __, nothing):
        state, _ = carry
        moved = replace(
            state,
            lengths=state.lengths + nothing,
            features=state.features + nothing.astype(state.features.dtype),
        )
        drafter_cache, found = decode.draft(pair[0], pair[1], moved, method)
        return replace(state, drafter_cache=drafter_cache), found

    def build_turn(_, fixed, carry, __, nothing):
        request, state = fixed
        found, _ = carry
        moved = found + nothing.astype(found.dtype)
        return found, decode.build(drafter, request, state, moved, method)

    def verify_turn(pair, state, carry, _, nothing):
        candidates, _, _ = carry
        moved = replace(candidates, tokens=candidates.tokens + nothing)
        here = replace(state, lengths=state.lengths + nothing)
        return candidates, *decode.verify(pair[0], pair[1], here, moved, method)

    def accept_turn(_, fixed, carry, __, nothing):
        request, state, candidates = fixed
        found, _ = carry
        return found, accept(request, state, candidates, found + nothing.astype(found.dtype))

    def commit_turn(_, fixed, state, __, nothing):
        passed, outcome = fixed
        outcome = replace(outcome, kept=outcome.kept + 1 + nothing)
        return replace(decode.commit(state, state.drafter_cache, passed, outcome), lengths=state.lengths)

    def bare() -> DecodeState:
        """The state without its caches, which these stages do not look at."""
        return replace(setting.state(Method.plain()), target_cache=(), drafter_cache=())

    def stage(name: str, turn: Callable, fixed: Callable, begin: Callable, bytes_: float, **more) -> Program:
        return _looped((name, width), setting, turn, fixed=fixed, begin=begin, read=lambda _: bytes_, **more)

    few, many = {"turns": setting.turns}, {"turns": 4 * setting.turns, "weighty": False}
    return [
        stage(
            "draft",
            draft_turn,
            lambda: (),
            lambda: (setting.state(method), zeros(drafted)),
            holdings.draft(setting.tokens).total,
            look=lambda carry: carry[1],
            **few,
        ),
        stage(
            "build",
            build_turn,
            lambda: (request, bare()),
            lambda: (logits(drafted), random_tree(setting, width)),
            4.0 * drafted.size,
            look=lambda carry: carry[1],
            **many,
        ),
        stage(
            "verify",
            verify_turn,
            lambda: setting.state(method),
            lambda: (random_tree(setting, width), zeros(passed), zeros(verified)),
            setting.reads(width),
            look=lambda carry: carry[2],
            **few,
        ),
        stage(
            "accept",
            accept_turn,
            lambda: (request, bare(), random_tree(setting, width)),
            lambda: (logits(verified), zeros(outcome)),
            4.0 * verified.size,
            look=lambda carry: carry[1],
            **many,
        ),
        stage(
            "commit",
            commit_turn,
            lambda: (zeros(passed), zeros(outcome)),
            lambda: setting.state(method),
            0.0,
            look=lambda carry: carry.lengths,
            **many,
        ),
    ]


def empty(setting: Setting) -> Program:
    """What a turn of a loop costs before it does anything."""
    return _looped(
        ("empty turn", 0),
        setting,
        lambda _, __, carry, ___, nothing: carry + nothing,
        fixed=lambda: (),
        begin=lambda: jnp.zeros((1,), jnp.int32),
        look=lambda carry: carry,
        read=lambda _: 0.0,
        turns=4 * setting.turns,
        weighty=False,
    )


def random_tree(setting: Setting, width: int) -> tree.Tree:
    """All ``width`` slots are in use, at random places no deeper than a drafted block, with random tokens."""
    random = np.random.default_rng(11)
    parents, depths = [-1], [0]
    for slot in range(1, width):
        open_ = [above for above in range(slot) if depths[above] < setting.models.depth]
        parents.append(int(random.choice(open_)))
        depths.append(depths[parents[-1]] + 1)
    tokens = random.integers(0, setting.models.target.config.vocab_size, width)
    return _tree(tokens, parents, depths)


def chain(tokens: list[int], width: int) -> tree.Tree:
    """Every token under the one before; zeros fill the ``width`` slots."""
    tokens = tokens[:width] + [0] * (width - len(tokens))
    return _tree(np.array(tokens), list(range(-1, width - 1)), list(range(width)))


def _tree(tokens: np.ndarray, parents: list[int], depths: list[int]) -> tree.Tree:
    above = jnp.asarray([parents], jnp.int32)
    return tree.Tree(
        tokens=jnp.asarray(tokens, jnp.int32)[None],
        parents=above,
        depths=jnp.asarray([depths], jnp.int32),
        count=jnp.full((1,), len(tokens) - 1, jnp.int32),
        ancestors=jax.jit(tree.ancestor_bits, static_argnums=1)(above, max(depths)),
    )


def distinct(experts: list[np.ndarray]) -> float:
    """Experts that a layer's slots went to, mean over layers and turns of some dispatches' [turns, layers, N,
    K].
    """
    layers = np.concatenate([each.reshape(-1, *each.shape[2:]) for each in experts])
    return float(np.mean([len(np.unique(layer)) for layer in layers]))


def _looped(
    program: tuple[str, int],
    setting: Setting,
    turn: Callable[[Any, Any, Carry, Array, Array], Carry],
    *,
    fixed: Callable[[], Any],
    begin: Callable[[], Carry],
    look: Callable[[Carry], Any],
    read: Callable[[list[Any]], float],
    turns: int,
    weighty: bool = True,
) -> Program:
    """A loop of turn(pair, fixed, carry, index, nothing), where index counts turns, and nothing is a 0.

    ``program``: name and width. ``weighty``: it reads weights; else its pair is None.
    """

    def loop(weights, fixed, carry, zero):
        pair = setting.pair(weights) if weighty else None

        def step(index, carry):
            return turn(pair, fixed, carry, index, index * zero)

        return jax.lax.fori_loop(0, turns, step, carry)

    zero = np.int32(0)

    def compile_() -> Ready:
        began = time.perf_counter()
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), jax.eval_shape(fixed))
        weights = setting.weights if weighty else []
        with traced_kernels() as ran:
            jitted = jax.jit(loop, donate_argnums=2)
            lowered = jitted.lower(weights, abstract, jax.eval_shape(begin), zero)
        # Without the rounds' options (`graph_options`): with them such a loop took longer than a whole round.
        compiled = lowered.compile()
        held: list[Any] = []

        def run(weights, carry):
            if not held:
                held.append(jax.device_put(fixed()))
            carry = compiled(weights if weighty else [], held[0], carry, zero)
            return carry, look(carry)

        return Ready(run, compiled, ran, time.perf_counter() - began)

    name, width = program
    return Program(name, setting.context, setting.tokens, width, turns, compile_, begin, read)
