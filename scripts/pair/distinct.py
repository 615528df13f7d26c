"""How little a text repeats itself."""

from collections.abc import Sequence


def distinct_share(ids: Sequence[int], width: int = 4) -> float:
    """Different n-grams of ``width`` over all of them; 1 for a text without any. Loops bring it down."""
    grams = [tuple(ids[i : i + width]) for i in range(len(ids) - width + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0
