"""How well two stacks agree at a stage, and whether rounding explains the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32, Int32

from jddtree.exactness import TIE_LIMITS, compare

LIMITS = {"float32": 2e-4, "bfloat16": 0.1}
"""Relative L2 error that rounding may leave at a stage."""

Stages = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Agreement:
    """One stage over all prompts.

    max_abs: largest difference. relative: ||ours - theirs|| / ||theirs||. cosine: of the two as vectors.
    kl: mean KL(theirs, ours) in nats of the distributions that logits stand for, top_1: share of slots with
    the same largest logit; both None elsewhere. limit: of ``relative``. note: what a person should know.
    """

    name: str
    verdict: Literal["equal", "tie", "bug"]
    max_abs: float | None = None
    relative: float | None = None
    cosine: float | None = None
    kl: float | None = None
    top_1: float | None = None
    limit: float | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields as an object."""
        return asdict(self)

    def cells(self) -> list[str]:
        """A row of the table."""
        figures = (self.max_abs, self.relative, self.cosine, self.kl, self.top_1, self.limit)
        return [self.name, *("-" if figure is None else f"{figure:.3g}" for figure in figures), self.verdict]


def agreement(name: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]], dtype: str) -> Agreement:
    """Compare the (theirs, ours) arrays of a stage. A value that is not finite, or another shape, is a bug.

    The router's bias is a weight, so it must be equal.
    """
    limit = 0.0 if name.endswith("router bias") else LIMITS[dtype]
    if not all(np.isfinite(array).all() for pair in pairs for array in pair):
        return Agreement(name, "bug", limit=limit, note="a value is not finite")
    shapes = [(theirs.shape, ours.shape) for theirs, ours in pairs if theirs.shape != ours.shape]
    if shapes:
        note = f"shapes differ: {list(shapes[0][0])} there, {list(shapes[0][1])} here"
        return Agreement(name, "bug", limit=limit, note=note)
    theirs = np.concatenate([pair[0].reshape(-1) for pair in pairs]).astype(np.float64)
    ours = np.concatenate([pair[1].reshape(-1) for pair in pairs]).astype(np.float64)
    difference, size = np.linalg.norm(ours - theirs), np.linalg.norm(theirs)
    relative = float(difference / size) if size else float(difference)
    cosine = float(theirs @ ours / (size * np.linalg.norm(ours))) if size and ours.any() else None
    kl = top_1 = None
    if name.endswith("logits"):
        kl = float(np.mean(np.concatenate([divergence(*pair) for pair in pairs])))
        top_1 = float(np.mean(np.concatenate([there.argmax(-1) == here.argmax(-1) for there, here in pairs])))
    return Agreement(
        name,
        "equal" if relative <= limit else "bug",
        float(np.max(np.abs(ours - theirs), initial=0.0)),
        relative,
        cosine,
        kl,
        top_1,
        limit,
    )


def divergence(
    theirs: Float32[np.ndarray, "N V"], ours: Float32[np.ndarray, "N V"]
) -> Float[np.ndarray, " N"]:
    """KL(theirs, ours) in nats of every row of logits."""
    p, q = log_softmax(theirs), log_softmax(ours)
    return np.sum(np.exp(p) * (p - q), axis=-1)


def log_softmax(logits: Float32[np.ndarray, "N V"]) -> Float[np.ndarray, "N V"]:
    """In float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def paths(tokens: Int32[np.ndarray, " n"], parents: Int32[np.ndarray, " n"]) -> list[tuple[int, ...]]:
    """The tokens from the root to every node."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
        found.append((*found[parent], token))
    return found[1:]


def tree_verdict(theirs: Sequence[Stages], ours: Sequence[Stages], dtype: str) -> Agreement:
    """The two trees as sets of prefixes. Nodes that only one of them has are a tie where their scores, under
    the other side's draft logits, lie within rounding of the weakest node that both chose between.
    """
    verdict, notes = "equal", []
    for number, (there, here) in enumerate(zip(theirs, ours, strict=True)):
        a, b = (
            set(paths(side["tree tokens"].astype(np.int32), side["tree parents"].astype(np.int32)))
            for side in (there, here)
        )
        if a == b:
            continue
        scores = log_softmax(there["draft logits"].astype(np.float32))
        gap = np.inf
        if len(a) == len(b):
            there_alone, here_alone = (
                np.sort([sum(scores[d, t] for d, t in enumerate(path)) for path in alone])
                for alone in (a - b, b - a)
            )
            gap = float(np.max(np.abs(there_alone - here_alone)))
        tie = gap < TIE_LIMITS[dtype]
        verdict = verdict if tie and verdict == "bug" else "tie" if tie else "bug"
        notes.append(
            f"prompt {number + 1}: {len(a - b)} of {len(a)} nodes differ, scores {gap:.2e} nats apart"
        )
    return Agreement("tree", verdict, note="; ".join(notes))


def text_verdict(theirs: Sequence[Stages], ours: Sequence[Stages], dtype: str) -> Agreement:
    """Greedy ids, with the top-1/top-2 logit gap of the first divergence."""
    verdict, notes = "equal", []
    for number, (there, here) in enumerate(zip(theirs, ours, strict=True)):
        found = compare(
            here["greedy ids"].tolist(), there["greedy ids"].tolist(), there["greedy gaps"].tolist()
        )
        if found.equal:
            continue
        tie = found.is_tie(dtype)
        verdict = verdict if tie and verdict == "bug" else "tie" if tie else "bug"
        gap = "-" if found.gap is None else f"{found.gap:.2e}"
        notes.append(
            f"prompt {number + 1}: first divergence at token {found.first_divergence}, where PyTorch's top-1 "
            f"and top-2 logits are {gap} apart"
        )
    return Agreement("greedy ids", verdict, note="; ".join(notes))
