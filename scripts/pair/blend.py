"""How often each kind of text is trained on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jddtree.errors import InputError
from scripts.pair.documents import KINDS, Documents, Rows, Special, pack
from scripts.pair.kinds import numbers_of

WEIGHTS = {
    "story": 3.0,
    "explain": 3.0,
    "chat": 3.0,
    "code": 3.0,
    "maths": 2.0,
    "library": 1.0,
    "docs": 1.0,
    "facts": 1.0,
}


def weights_of(words: list[str]) -> dict[str, float]:
    """WEIGHTS with changes written as "kind=number". Raises InputError for another kind or number."""
    return WEIGHTS | numbers_of(words, "KIND=NUMBER")


@dataclass(frozen=True)
class Blend:
    """Packed rows of one kind each, kind after kind.

    counts: rows of each kind. tokens: tokens of each kind. shares: which share of a kind's rows goes into one
    pass; 1 for the kind of the greatest weight.
    """

    rows: Rows
    counts: dict[str, int]
    tokens: dict[str, int]
    shares: dict[str, float]

    def batches(self, size: int, seed: int, start: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
        """Endless batches of ``size`` rows (see `Rows.gather`), from batch ``start`` on.

        Every pass has a new random order; a kind's rows are all used before one comes again. An incomplete
        last batch is left out. Raises InputError when a pass is less than a batch.
        """
        number = 0
        for order in self._passes(seed):
            if size > len(order):
                raise InputError(
                    f"{len(order)} rows of text are too few for batches of {size}: use more text or a "
                    "smaller batch"
                )
            for i in range(0, len(order) - size + 1, size):
                if number >= start:
                    yield self.rows.gather(order[i : i + size])
                number += 1

    def report(self, tokens: float) -> dict[str, dict[str, float]]:
        """Of each kind, for ``tokens`` tokens trained on: its "tokens", its "share" of what is trained on,
        and how often it is "seen".
        """
        in_pass = {kind: self.tokens[kind] * self.shares[kind] for kind in self.counts}
        total = sum(in_pass.values())
        return {
            kind: {
                "tokens": self.tokens[kind],
                "share": count / total,
                "seen": self.shares[kind] * tokens / total,
            }
            for kind, count in in_pass.items()
        }

    def _passes(self, seed: int) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(seed)
        left = {kind: np.zeros(0, np.int64) for kind in self.counts}
        while True:
            chosen, begin = [], 0
            for kind, count in self.counts.items():
                wanted = max(1, round(count * self.shares[kind]))
                if len(left[kind]) < wanted:
                    left[kind] = np.concatenate([left[kind], begin + rng.permutation(count)])
                chosen.append(left[kind][:wanted])
                left[kind] = left[kind][wanted:]
                begin += count
            yield rng.permutation(np.concatenate(chosen))


def blend(
    documents: Documents, weights: Mapping[str, float], width: int, special: Special, seed: int
) -> Blend:
    """Pack documents kind by kind. A kind of weight 2 is seen twice as often as one of weight 1; kinds of
    weight 0 and documents longer than ``width`` are left out.

    Raises InputError when nothing is left.
    """
    packed: dict[str, Rows] = {}
    tokens: dict[str, int] = {}
    for index, kind in enumerate(KINDS):
        chosen = np.flatnonzero((documents.kinds == index) & (documents.lengths <= width))
        if weights[kind] and len(chosen):
            packed[kind] = pack(documents.take(chosen), width, special, seed)
            tokens[kind] = int(documents.lengths[chosen].sum())
    if not packed:
        raise InputError("no text to train on: all kinds that are there have weight 0")
    most = max(weights[kind] for kind in packed)
    return Blend(
        Rows(
            np.concatenate([rows.tokens for rows in packed.values()]),
            np.concatenate([rows.positions for rows in packed.values()]),
            np.concatenate([rows.answer for rows in packed.values()]),
        ),
        {kind: len(rows) for kind, rows in packed.items()},
        tokens,
        {kind: weights[kind] / most for kind in packed},
    )
