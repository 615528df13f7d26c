"""Against loops: the target writes to training prompts, and tokens by which it repeats itself are made less
likely (sequence-level unlikelihood, arXiv 1908.04319).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
from jaxtyping import Bool

from jddtree.config import KimiK2Config
from scripts.pair.distinct import distinct_share
from scripts.pair.documents import KINDS, ChatForm, Documents, Rows, pack
from scripts.pair.sampler import cut, write
from scripts.pair.target import Params

PROSE = ("story", "explain", "chat")  # code and sums repeat themselves rightly
GRAM = 4
VARIED = 0.5  # share of training prompts in no trained pattern, where loops are most common
GREEDY = 0.75  # share of texts at temperature 0; the rest at WARM
WARM = 0.7
HELD_ONE_IN = 8  # rows that answer held-out prompts: measured, never trained on


@dataclass(frozen=True)
class Prompts:
    """User's messages of the prose kinds of ``documents``, as ids; at most ``longest`` ids with the form."""

    documents: Documents
    form: ChatForm
    longest: int

    @cached_property
    def by_kind(self) -> dict[str, np.ndarray]:
        """Indices of the documents of each kind; kinds without any are left out."""
        d = self.documents
        fits = (d.prompts > 0) & (d.prompts <= self.longest)
        found = {kind: np.flatnonzero(fits & (d.kinds == KINDS.index(kind))) for kind in PROSE}
        return {kind: chosen for kind, chosen in found.items() if len(chosen)}

    def draw(self, kind: str, varied: bool, rng: np.random.Generator) -> list[int]:
        """A prompt of a kind, or a variation: without its first words, cut short, or mixed with another."""
        body = self._body(kind, rng)
        if varied:
            other = self._body(rng.choice(list(self.by_kind)), rng)
            at = int(rng.integers(1, max(2, len(body))))
            ways = body[at:], body[:at], body[:at] + other[len(other) // 2 :], body + other
            body = ways[rng.integers(len(ways))] or body
        room = self.longest - len(self.form.before) - len(self.form.between)
        return [*self.form.before, *body[:room], *self.form.between]

    def _body(self, kind: str, rng: np.random.Generator) -> list[int]:
        i = int(rng.choice(self.by_kind[kind]))
        begin = int(self._starts[i])
        end = begin + int(self.documents.prompts[i]) - len(self.form.between)
        return self.documents.tokens[begin + len(self.form.before) : end].tolist()

    @cached_property
    def _starts(self) -> np.ndarray:
        return self.documents.starts()


@dataclass(frozen=True)
class Own:
    """The target's own texts that repeat themselves, packed, and the marks of `repeats`."""

    rows: Rows
    marks: Bool[np.ndarray, "rows T"]

    def draw(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, positions and marks of ``count`` rows; rows come again where there are too few."""
        chosen = rng.choice(len(self.rows), count, replace=len(self.rows) < count)
        tokens, positions, _ = self.rows.gather(chosen)
        return tokens, positions, self.marks[chosen]


def repeats(rows: Rows) -> Bool[np.ndarray, "rows T"]:
    """Tokens of answers that complete a sequence of GRAM tokens which the same answer held before."""
    document = np.cumsum(rows.positions == 0, axis=1)
    wide = rows.tokens.astype(np.uint64)
    count = wide.shape[1] - GRAM + 1
    # A gram's tokens lie in one answer if its ends do.
    whole = rows.answer[:, :count] & rows.answer[:, GRAM - 1 :]
    whole &= document[:, :count] == document[:, GRAM - 1 :]
    grams = np.zeros(whole.shape, np.uint64)
    for i in range(GRAM):
        grams = (grams << np.uint64(16)) | wide[:, i : i + count]
    found = np.unique(grams[whole], return_inverse=True)[1].astype(np.int64)
    text = (np.arange(len(rows))[:, None] * (rows.tokens.shape[1] + 1) + document[:, :count])[whole]
    again = np.ones(len(found), bool)
    again[np.unique(text * (len(found) + 1) + found, return_index=True)[1]] = False
    marks = np.zeros(rows.tokens.shape, bool)
    marks[:, GRAM - 1 :][whole] = again
    return marks


def write_own(
    config: KimiK2Config,
    params: Params,
    train: Prompts,
    held: Prompts,
    *,
    texts: int,
    slots: int,
    width: int,
    seed: int,
    say: Callable[[str], None],
) -> tuple[Own, dict[str, float]]:
    """One batch of ``texts`` rows of ``slots`` ids: what to train against, packed into rows of ``width``, and
    the share of distinct grams in greedy answers to held-out prompts, by kind and for "varied" prompts.

    ``params`` come in the type to compute in.
    """
    rng = np.random.default_rng(seed)
    kinds = list(held.by_kind)
    groups = [*kinds, "varied"]
    measured = [groups[i % len(groups)] for i in range(max(len(groups), texts // HELD_ONE_IN))]
    prompts = [
        held.draw(rng.choice(kinds) if name == "varied" else name, name == "varied", rng) for name in measured
    ]
    names = list(train.by_kind)
    of_kind = [names[i % len(names)] for i in range(texts - len(prompts))]
    prompts += [train.draw(kind, rng.random() < VARIED, rng) for kind in of_kind]
    warm = np.where(rng.random(texts) < GREEDY, 0.0, WARM).astype(np.float32)
    warm[: len(measured)] = 0.0

    special = train.form.special
    filled = np.full((texts, slots), special.pad, np.int32)
    for row, prompt in enumerate(prompts):
        filled[row, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    written = np.asarray(write(config, params, filled, lengths, warm, jax.random.key(seed)))
    answers = list(cut(written, lengths, np.zeros(texts, np.uint8), special))
    # The stop token is no part of the text.
    shares = [distinct_share(ids[prompt:-1].tolist(), GRAM) for ids, prompt, _ in answers]
    figures = {
        name: float(np.mean([share for share, of in zip(shares, measured, strict=False) if of == name]))
        for name in groups
    }
    ours = answers[len(measured) :]
    looping = [text for text, share in zip(ours, shares[len(measured) :], strict=True) if share < 1]
    rows = pack(Documents.of(looping or ours, slots), width, special, seed)
    marks = repeats(rows)
    shown = "  ".join(f"{name} {share:.2f}" for name, share in figures.items())
    say(
        f"{len(looping)} of {len(ours)} own texts repeat themselves, {int(marks.sum())} tokens marked; "
        f"distinct on held-out prompts: {shown}"
    )
    return Own(rows, marks), figures
