"""Is speculative output the plain output? The first divergence, how close the plain choice was, a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass

TIE_LIMITS = {"float32": 1e-4, "bfloat16": 0.25}
"""A top-1/top-2 logit gap below this may fall either way when matmuls have another width."""


@dataclass(frozen=True)
class Exactness:
    """What a check found.

    checked: False when nothing was compared. first_divergence: index into the output. gap: the plain run's
    top-1 minus top-2 logit there; None where one output merely ends before the other.
    """

    checked: bool
    equal: bool | None = None
    first_divergence: int | None = None
    gap: float | None = None

    def is_tie(self, dtype: str) -> bool:
        """Whether rounding explains the difference."""
        return self.gap is not None and self.gap < TIE_LIMITS[dtype]

    def verdict(self, dtype: str, other: str = "plain decoding") -> str:
        """One phrase for the user. ``other``: what was compared with."""
        if not self.checked:
            return "not checked"
        if self.equal:
            return f"equal to {other}"
        where = f"differs from {other} at output token {self.first_divergence}"
        if self.gap is None:
            return f"{where}, where one of the two ends: bug"
        cause = "tie within rounding" if self.is_tie(dtype) else "bug"
        return f"{where}; its top-1 and top-2 logits are {self.gap:.2e} apart there: {cause}"


def compare(output: Sequence[int], plain: Sequence[int], plain_margins: Sequence[float]) -> Exactness:
    """Compare output ids with plain decoding's; ``plain_margins`` are its top-1 minus top-2 logits."""
    if list(output) == list(plain):
        return Exactness(checked=True, equal=True)
    shared = min(len(output), len(plain))
    at = next((i for i in range(shared) if output[i] != plain[i]), shared)
    return Exactness(
        checked=True, equal=False, first_divergence=at, gap=plain_margins[at] if at < shared else None
    )
