"""Where stop strings end a text: every prefix is looked at, from the shortest."""

from collections.abc import Sequence


def cut(text: str, stops: Sequence[str]) -> tuple[str, int | None]:
    """(the text before the stop string whose end comes first, characters up to that end; None without one).

    Of several that end there, the longest counts.
    """
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], end
    return text, None
