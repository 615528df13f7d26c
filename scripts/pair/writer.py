"""Writes texts with any target: many prompts at once, one token a row and step.

All rows stand at the same position, so a prompt's tokens are fed one by one as well. The cache grows by
windows: early positions do not read a long one. A `Style` holds the rules that keep a small model's prose
from repeating itself.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int8

from jddtree.decoder import check_prompt
from jddtree.errors import InputError
from jddtree.models.target import Cache, Target
from pallas_kernels.tree_attention.api import causal_mask

WINDOW = 128
"""Cache slots that are added at a time."""

MOST_USES, RAISE, MOST_RAISED = 2, 0.05, 8.0


@dataclass(frozen=True)
class Style:
    """How one text is written, beside its temperature.

    min_p: keep tokens with at least min_p times the likeliest one's probability, after temperature, before
    the end is raised: the end can win only where it is likely anyway. penalty: taken from the logit of a
    content word for each earlier use, at most twice. ngram: no so many tokens in a row twice in the answer
    (0: no rule). end_after: after a random number of answer tokens in this range the logits of the stop ids
    rise by 0.05 a token, up to 8. opening: ids that the answer starts with.
    """

    min_p: float = 0.0
    penalty: float = 0.0
    ngram: int = 0
    end_after: tuple[int, int] | None = None
    opening: tuple[int, ...] = ()


PLAIN = Style()


@dataclass(frozen=True)
class Words:
    """What tokens are. content: of words that the penalty counts. starts: of a word, sign or line: those that
    the n-gram rule may forbid.
    """

    content: Bool[np.ndarray, " V"]
    starts: Bool[np.ndarray, " V"]


class Text(NamedTuple):
    """index: of the prompt. ids: the answer, its opening included. logprob: mean log-probability of the
    sampled ids at temperature 1, 0 without any. stop: the id that ended it, in neither; None: it was cut.
    """

    index: int
    ids: list[int]
    logprob: float
    stop: int | None


class _Rules(NamedTuple):
    """Static: which rules any row has."""

    penalty: bool
    ngram: int
    min_p: bool
    raised: bool


class _Rows(NamedTuple):
    """What each row was asked for. Positions count from the prompt's first token: begin is the answer's,
    given the first one's that is sampled, rise the one after which the end's logit rises.
    """

    begin: Int[Array | np.ndarray, " B"]
    given: Int[Array | np.ndarray, " B"]
    rise: Int[Array | np.ndarray, " B"]
    temperature: Float[Array | np.ndarray, " B"]
    min_p: Float[Array | np.ndarray, " B"]
    penalty: Float[Array | np.ndarray, " B"]
    ngram: Int[Array | np.ndarray, " B"]
    stop: Bool[Array | np.ndarray, " V"]
    content: Bool[Array | np.ndarray, " V"]
    starts: Bool[Array | np.ndarray, " V"]
    key: Array


class _State(NamedTuple):
    """position: of the token that is fed next. used: how often the answer holds each content word (no columns
    without a penalty). sampled, logprob: ids before the end, and the sum of their log-probabilities.
    """

    position: Int[Array, ""]
    tokens: Int[Array, "B S"]
    cache: Cache
    used: Int8[Array, "B _"]
    done: Bool[Array, " B"]
    sampled: Int[Array, " B"]
    logprob: Float[Array, " B"]


def write_texts(
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    style: Style | Sequence[Style] = PLAIN,
    temperatures: Sequence[float] | np.ndarray,
    slots: int,
    rows: int,
    stop_ids: Sequence[int],
    seed: int,
    say: Callable[[str], None],
    words: Words | None = None,
) -> Iterator[Text]:
    """Answers to ``prompts``, in batches of ``rows`` prompts of like length; a batch comes when it is done.

    Args:
      target: runs in the type that its weights have.
      style: one for all, or one a prompt.
      temperatures: one a prompt; 0 is greedy.
      slots: most tokens of prompt and answer; a longer answer is cut.
      stop_ids: what ends an answer.
      words: needed where a style has a penalty or an n-gram rule.

    Raises:
      InputError: a prompt does not fit, or ``slots`` does not fit the target.
    """
    styles = [style] * len(prompts) if isinstance(style, Style) else list(style)
    rows = min(rows, len(prompts))
    if not rows:
        return
    lengths = [len(prompt) + len(each.opening) for prompt, each in zip(prompts, styles, strict=True)]
    order = np.argsort(lengths, kind="stable")
    batches = [order[at : at + rows].tolist() for at in range(0, len(order), rows)]
    writer = Writer(target, styles, rows=rows, slots=slots, stop_ids=stop_ids, words=words)
    for number, prompt in enumerate(prompts):
        writer.check([*prompt, *styles[number].opening], f"prompt {number}")
    begin, done, written = time.perf_counter(), 0, 0
    # In random order, so that whoever stops early has not had the short prompts alone.
    for number in np.random.default_rng(seed).permutation(len(batches)).tolist():
        chosen = batches[number]
        made = writer.write(
            [prompts[i] for i in chosen],
            [styles[i] for i in chosen],
            [float(temperatures[i]) for i in chosen],
            seed=(seed, number),
        )
        done, written = done + len(made), written + sum(len(text.ids) for text in made)
        speed = written / (time.perf_counter() - begin)
        say(f"texts {done}/{len(prompts)}  {written / 1e6:.2f} M tokens  {speed / 1e3:.1f}k tokens/s")
        yield from (text._replace(index=chosen[text.index]) for text in made)


def _answer(
    tokens: np.ndarray, begin: int, given: int, stop: np.ndarray, mean: float
) -> tuple[list[int], float, int | None]:
    """A row's answer up to its first stop id among what was sampled."""
    ends = np.flatnonzero(stop[tokens[given:]])
    if not len(ends):
        return tokens[begin:].tolist(), mean, None
    end = given + int(ends[0])
    return tokens[begin:end].tolist(), mean, int(tokens[end])


class Writer:
    """The compiled windows for one number of rows and slots, and for the rules that any of ``styles`` has.

    ``words``: see `write_texts`. Raises InputError when ``slots`` does not fit the target.
    """

    def __init__(
        self,
        target: Target,
        styles: Sequence[Style],
        *,
        rows: int,
        slots: int,
        stop_ids: Sequence[int],
        words: Words | None = None,
    ):
        config = target.config
        if slots > config.max_position:
            raise InputError(
                f"texts of {slots} tokens do not fit the target's {config.max_position} positions"
            )
        self._rules = _Rules(
            any(each.penalty for each in styles),
            max((each.ngram for each in styles), default=0),
            any(each.min_p for each in styles),
            any(each.end_after for each in styles),
        )
        if words is None:
            if self._rules.penalty or self._rules.ngram:
                raise ValueError("a penalty or an n-gram rule needs words")
            words = Words(*[np.zeros(config.vocab_size, bool)] * 2)
        self._words, self._stop = words, np.zeros(config.vocab_size, bool)
        self._stop[list(stop_ids)] = True
        # Flattened once: a compiled call should not walk the modules again.
        self._weights, self._modules = jax.tree.flatten(target)
        self._slots, self._rows, self._vocab = slots, rows, config.vocab_size
        self._dtype = jax.eval_shape(target.embed, jax.ShapeDtypeStruct((1, 1), jnp.int32)).dtype
        self._new_cache = target.new_cache
        self._widths = [min(width, slots) for width in range(WINDOW, slots + WINDOW, WINDOW)]
        self._programs: list[jax.stages.Compiled] = []

    def check(self, ids: Sequence[int], name: str) -> None:
        """Raises InputError unless ``ids``, a prompt and its opening, leave room for a token."""
        check_prompt(ids, self._vocab, self._slots, name)

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        styles: Sequence[Style],
        temperatures: Sequence[float],
        *,
        seed: tuple[int, int],
    ) -> list[Text]:
        """One batch: up to ``rows`` prompts, each with its style and temperature."""
        # Missing rows repeat the last prompt, so that nothing is compiled again.
        chosen = np.minimum(np.arange(self._rows), len(prompts) - 1).tolist()
        some = [styles[i] for i in chosen]
        fed = [[*prompts[i], *styles[i].opening] for i in chosen]
        begin = np.array([len(prompts[i]) for i in chosen], np.int32)
        rng = np.random.default_rng(seed)
        pauses = [
            rng.integers(*each.end_after, endpoint=True) if each.end_after else self._slots for each in some
        ]
        asked = _Rows(
            begin=begin,
            given=np.array([len(ids) for ids in fed], np.int32),
            rise=begin + np.array(pauses, np.int32),
            temperature=np.array([temperatures[i] for i in chosen], np.float32),
            min_p=np.array([each.min_p for each in some], np.float32),
            penalty=np.array([each.penalty for each in some], np.float32),
            ngram=np.array([each.ngram for each in some], np.int32),
            stop=self._stop,
            content=self._words.content,
            starts=self._words.starts,
            key=jax.random.fold_in(jax.random.key(seed[0]), seed[1]),
        )
        tokens = np.zeros((self._rows, self._slots), np.int32)
        for row, ids in enumerate(fed):
            tokens[row, : len(ids)] = ids
        texts, means = self._run(tokens, asked)
        return [
            Text(row, *_answer(texts[row], int(begin[row]), len(fed[row]), self._stop, float(means[row])))
            for row in range(len(prompts))
        ]

    def _run(self, tokens: np.ndarray, asked: _Rows) -> tuple[np.ndarray, np.ndarray]:
        """Filled rows [B, S], and each row's mean log-probability [B]."""
        state = self._start(tokens)
        if not self._programs:
            self._programs = self._compiled(state, asked)
        for width, program in zip(self._widths, self._programs, strict=True):
            if bool(jnp.all(state.done)):
                break
            state = state._replace(cache=_grown(state.cache, width))
            state = program(self._weights, state, asked)
        sums, counts = np.asarray(state.logprob), np.asarray(state.sampled)
        return np.asarray(state.tokens), sums / np.maximum(counts, 1)

    def _start(self, tokens: np.ndarray) -> _State:
        rows = self._rows
        return _State(
            position=jnp.int32(0),
            tokens=jnp.asarray(tokens),
            cache=self._new_cache(rows, self._widths[0], self._dtype),
            used=jnp.zeros((rows, self._vocab if self._rules.penalty else 0), jnp.int8),
            done=jnp.zeros(rows, bool),
            sampled=jnp.zeros(rows, jnp.int32),
            logprob=jnp.zeros(rows, jnp.float32),
        )

    def _compiled(self, state: _State, asked: _Rows) -> list[jax.stages.Compiled]:
        """A program a window, compiled side by side."""

        def program(weights, state, asked, *, width):
            target = jax.tree.unflatten(self._modules, weights)
            return _write_window(target, state, asked, rules=self._rules, end=min(width, self._slots - 1))

        lowered = []
        for width in self._widths:
            cache = jax.eval_shape(partial(_grown, width=width), state.cache)
            run = jax.jit(partial(program, width=width), donate_argnums=1)
            lowered.append(run.lower(self._weights, state._replace(cache=cache), asked))
        with ThreadPoolExecutor() as pool:
            return list(pool.map(jax.stages.Lowered.compile, lowered))


def _grown(cache: Cache, width: int) -> Cache:
    """The cache with room for ``width`` slots."""

    def grow(leaf: Array) -> Array:
        more = [(0, 0)] * leaf.ndim
        more[1] = (0, width - leaf.shape[1])
        return jnp.pad(leaf, more)

    return cache if jax.tree.leaves(cache)[0].shape[1] == width else jax.tree.map(grow, cache)


def _write_window(target: Target, state: _State, asked: _Rows, *, rules: _Rules, end: int) -> _State:
    """Feed the tokens at positions up to ``end``, and choose each one's next; stop when all rows are done."""
    rows = state.tokens.shape[0]
    number = jnp.arange(rows)
    mask, valid = causal_mask(1), jnp.ones((rows, 1), bool)

    def go_on(state: _State) -> Array:
        return (state.position < end) & ~jnp.all(state.done)

    def step(state: _State) -> _State:
        at = state.position
        fed = jax.lax.dynamic_slice_in_dim(state.tokens, at, 1, axis=1)
        places = jnp.full((rows,), at)
        passed = target(fed, places[:, None], valid, mask, state.cache, places, ())
        # The cache is written after all layers have read it: else the compiler copies it every step.
        fresh, hidden = jax.lax.optimization_barrier((passed.fresh, passed.hidden))
        cache = jax.tree.map(
            lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new.astype(leaf.dtype), at, axis=1),
            state.cache,
            fresh,
        )
        logits = target.logits(hidden)[:, 0]
        chosen = choose(logits, state.tokens, state.used, at, asked, rules)
        given = at + 1 < asked.given
        following = jax.lax.dynamic_slice_in_dim(state.tokens, at + 1, 1, axis=1)[:, 0]
        following = jnp.where(given, following, chosen)
        ends = ~given & asked.stop[following]
        counts = ~given & ~state.done & ~ends
        right = jnp.take_along_axis(logits, following[:, None], axis=1)[:, 0]
        logprob = right - jax.nn.logsumexp(logits, axis=1)
        used = state.used
        if rules.penalty:
            more = (at + 1 >= asked.begin) & asked.content[following]
            uses = used[number, following] + more.astype(jnp.int8)
            used = used.at[number, following].set(jnp.minimum(uses, MOST_USES))
        return _State(
            position=at + 1,
            tokens=jax.lax.dynamic_update_slice_in_dim(state.tokens, following[:, None], at + 1, axis=1),
            cache=cache,
            used=used,
            done=state.done | ends,
            sampled=state.sampled + counts,
            logprob=state.logprob + jnp.where(counts, logprob, 0.0),
        )

    return jax.lax.while_loop(go_on, step, state)


def choose(
    logits: Float[Array, "B V"],
    tokens: Int[Array, "B S"],
    used: Int8[Array, "B _"],
    at: Int[Array, ""],
    asked: _Rows,
    rules: _Rules,
) -> Int[Array, " B"]:
    """The token after position ``at`` of every row, by its style and temperature."""
    if rules.penalty:
        logits = logits - asked.penalty[:, None] * used.astype(jnp.float32)
    if rules.ngram:
        again = repeats(tokens, at, asked.begin, asked.ngram, rules.ngram) & asked.starts[tokens]
        number, nowhere = jnp.arange(tokens.shape[0])[:, None], logits.shape[1]
        logits = logits.at[number, jnp.where(again, tokens, nowhere)].set(-jnp.inf, mode="drop")
    greedy = asked.temperature <= 0
    scale = jnp.where(greedy, 1.0, asked.temperature)[:, None]
    logits = logits / scale
    if rules.min_p:
        least = jnp.max(logits, axis=1, keepdims=True) + jnp.log(asked.min_p)[:, None]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if rules.raised:
        higher = jnp.clip((at + 1 - asked.rise) * RAISE, 0.0, MOST_RAISED)[:, None] / scale
        logits = logits + higher * asked.stop
    noise = jax.random.gumbel(jax.random.fold_in(asked.key, at), logits.shape)
    return jnp.argmax(logits + jnp.where(greedy[:, None], 0.0, noise), axis=1).astype(jnp.int32)


def repeats(
    tokens: Int[Array, "B S"],
    at: Int[Array, ""],
    begin: Int[Array | np.ndarray, " B"],
    ngram: Int[Array | np.ndarray, " B"],
    most: int,
) -> Bool[Array, "B S"]:
    """Places whose token, chosen next, would complete ``ngram`` tokens in a row that are in the answer.

    The answer starts at ``begin`` and its last token is at ``at``; ``most``: the largest of ``ngram``.
    """
    place = jnp.arange(tokens.shape[1])
    found = (
        (place <= at) & (place >= jnp.asarray(begin + ngram - 1)[:, None]) & jnp.asarray(ngram > 0)[:, None]
    )
    for back in range(1, most):
        earlier = jnp.pad(tokens[:, :-back], ((0, 0), (back, 0)))
        last = jax.lax.dynamic_slice_in_dim(tokens, jnp.maximum(at + 1 - back, 0), 1, axis=1)
        found &= (earlier == last) | (back >= ngram)[:, None]
    return found
