"""Reads the number that a word problem's answer states."""

import re

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
STATED = re.compile(rf"The answer is \$?({NUMBER})")
ANY = re.compile(NUMBER)


def stated(text: str) -> float | None:
    """The number after the last "The answer is"; None without one."""
    return _last(STATED.findall(text))


def final_number(text: str) -> float | None:
    """What a text gives as its answer: the stated number, else the last number in it."""
    found = stated(text)
    return _last(ANY.findall(text)) if found is None else found


def _last(numbers: list[str]) -> float | None:
    return float(numbers[-1].replace(",", "")) if numbers else None
