"""Numbers that flags give to kinds of text, as KIND=NUMBER."""

import math
from collections.abc import Sequence

from jddtree.errors import InputError
from scripts.pair.documents import KINDS


def numbers_of(words: Sequence[str], form: str, most: float = math.inf) -> dict[str, float]:
    """Kind -> number, of words written as ``form``, for example "KIND=SHARE". Raises InputError for an
    unknown kind, and for a number that is not finite and from 0 to ``most``.
    """
    limits = "0 or more" if most == math.inf else f"from 0 to {most:g}"
    found: dict[str, float] = {}
    for word in words:
        kind, _, number = word.partition("=")
        try:
            found[kind] = float(number)
        except ValueError:
            found[kind] = math.nan
        if kind not in KINDS or not 0 <= found[kind] <= most or found[kind] == math.inf:
            raise InputError(f"{word}: not {form} with a number, {limits}, and a kind of {', '.join(KINDS)}")
    return found
