"""Widths that are no powers of two, as parts that are: what Triton's registers hold."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Places [start, start + width) in registers of ``padded`` places, a power of two of 16 or more."""

    start: int
    width: int
    padded: int


def parts_of(start: int, width: int) -> tuple[Part, ...]:
    """``width`` places from ``start`` as powers of two, largest first; a rest under 16 is padded."""
    parts = []
    while width >= 16:
        size = 1 << (width.bit_length() - 1)
        parts.append(Part(start, size, size))
        start, width = start + size, width - size
    if width:
        parts.append(Part(start, width, 16))
    return tuple(parts)
