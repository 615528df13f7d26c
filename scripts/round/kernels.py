"""How many kernels a turn of a compiled loop launches, read from the compiler's text."""

import re
from collections import Counter

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\(")
_CALLED = re.compile(r"(?:body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')

FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id opt-barrier "
    "async-done copy-done all-reduce-done".split()
)
"""Instructions that launch nothing."""

NAMES = {"fusion": "fusions", "custom-call": "custom_calls", "copy": "copies", "copy-start": "copies"}


def kernels(text: str) -> dict[str, int]:
    """Of the turn of the longest loop in a program (the program itself where it has none): ``fusions``,
    ``custom_calls``, ``copies`` and ``others``. What is in a loop of a known number of turns counts as often,
    else once.
    """
    computations, entry = _computations(text)
    # The loop of the rounds is the one that holds most.
    turns = [
        _count(computations, _CALLED.findall(line)[-1])
        for line in computations[entry]
        if _opcode(line) == "while"
    ]
    found = max(turns, key=Counter.total, default=_count(computations, entry))
    return {name: found[name] for name in (*dict.fromkeys(NAMES.values()), "others")}


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    found: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            lines = found.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        else:
            lines.append(line)
    return found, entry


def _opcode(line: str) -> str | None:
    match = _LINE.match(line)
    return match[1] if match else None


def _count(computations: dict[str, list[str]], name: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in computations[name]:
        opcode = _opcode(line)
        if opcode is None or opcode in FREE:
            continue
        if opcode == "while":
            trips = _TRIPS.search(line)
            inner = Counter()
            for called in _CALLED.findall(line):
                inner += _count(computations, called)
            for _ in range(int(trips[1]) if trips else 1):
                found += inner
        elif opcode in ("call", "conditional"):
            called = _CALLED.findall(line)
            for branches in _BRANCHES.findall(line):
                called += re.findall(r"[\w.\-]+", branches)
            # Of branches one is taken: the longest.
            found += max((_count(computations, each) for each in called), key=Counter.total)
        else:
            found[NAMES.get(opcode, "others")] += 1
    return found
