"""From published tensor names to a model's arrays and back. A model family is one table of rules.

Every published tensor goes through the first rule whose pattern is its whole name. The result is a `Plan`;
the same plan, kept in the manifest, leads back to the published tensors.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from jddtree.checkpoint.published import DTYPES, Tensor
from jddtree.errors import InputError

Op = Literal["copy", "stack", "heads", "tied", "note", "skip"]


@dataclass(frozen=True)
class Rule:
    """What to do with published tensors.

    Attributes:
        op: copy: one tensor is one array. stack: the tensors that differ in the group ``index`` are one array
            [count, ...]. heads: one tensor [H (a + b), R] is two arrays [H, a, R] and [H, b, R].
            tied: a second copy of an array that the model has anyway. note: a few integers about a tensor,
            which the manifest keeps. skip: not part of the text model.
        name: pattern of the published name.
        to: the arrays' paths in the model; backslash groups refer to ``name``.
        count: for stack, how many tensors there must be.
        rows: for heads, (a, b).
    """

    op: Op
    name: str
    to: tuple[str, ...] = ()
    count: int = 1
    rows: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Entry:
    """Published tensors of one dtype and shape that go together, and the arrays they become.

    ``name`` has ``{}`` for the index where ``count`` is not None. ``value`` holds the integers of a note.
    """

    op: Op
    name: str
    count: int | None
    dtype: str
    shape: tuple[int, ...]
    paths: tuple[str, ...]
    rows: tuple[int, int]
    value: list | None = None

    @property
    def names(self) -> list[str]:
        """The published names, in order."""
        return (
            [self.name]
            if self.count is None
            else [_numbered(self.name, index) for index in range(self.count)]
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return len(self.names) * int(np.prod(self.shape, dtype=np.int64)) * DTYPES[self.dtype].itemsize

    @property
    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model arrays it fills, by path."""
        if self.op == "copy":
            return {self.paths[0]: self.shape}
        if self.op == "stack":
            return {self.paths[0]: (len(self.names), *self.shape)}
        if self.op == "heads":
            heads = self.shape[0] // sum(self.rows)
            return {
                path: (heads, rows, self.shape[1]) for path, rows in zip(self.paths, self.rows, strict=True)
            }
        return {}

    def places(self, tensors: slice, rows: slice) -> dict[str, tuple[slice, ...]]:
        """Where rows of some of its tensors lie in the model's arrays, by path.

        Args:
            tensors: which of ``names``; one, but for stack.
            rows: of each tensor; for heads, whole multiples of a + b.
        """
        if self.op == "stack":
            return {self.paths[0]: (tensors, rows)}
        if self.op == "heads":
            heads = slice(rows.start // sum(self.rows), rows.stop // sum(self.rows))
            return dict.fromkeys(self.paths, (heads,))
        return {self.paths[0]: (rows,)}

    def split(self, block: np.ndarray) -> dict[str, np.ndarray]:
        """Rows of published tensors [tensors, rows, ...] as the parts of the model's arrays in `places`.

        The parts of a contiguous block are views of it: what is read into them fills the block.
        """
        if self.op == "stack":
            return {self.paths[0]: block}
        if self.op == "heads":
            heads = block[0].reshape(-1, sum(self.rows), self.shape[1])
            parts = heads[:, : self.rows[0]], heads[:, self.rows[0] :]
            return dict(zip(self.paths, parts, strict=True))
        return {self.paths[0]: block[0]}

    def note(self, index: int) -> np.ndarray:
        """Tensor ``index`` of a note."""
        values = [self.value] if self.count is None else self.value or []
        return np.array(values[index], DTYPES[self.dtype])


@dataclass(frozen=True)
class Plan:
    """Every published tensor of a checkpoint: mapped, or skipped by name."""

    entries: list[Entry]
    skipped: list[str] = field(default_factory=list)

    @property
    def arrays(self) -> dict[str, Entry]:
        """The entry that fills each model array, by path."""
        return {path: entry for entry in self.entries for path in entry.arrays}

    @property
    def packed(self) -> frozenset[str]:
        """Dotted paths of the modules whose weights are INT4."""
        suffix = ".weight_packed"
        return frozenset(path.removesuffix(suffix) for path in self.arrays if path.endswith(suffix))


def make_plan(source: Mapping[str, Tensor], rules: tuple[Rule, ...]) -> Plan:
    """Apply a family's rules to a folder's tensors.

    Raises:
        InputError: no rule takes a tensor, two take the same place, or one of a stack is missing or differs.
    """
    entries: list[Entry] = []
    skipped: list[str] = []
    stacks: dict[tuple[str, int | None], dict[int, Tensor]] = {}
    matched: dict[str, tuple[Rule, re.Match[str]]] = {}
    for tensor in source.values():
        rule, match = _rule(tensor, rules)
        if rule.op == "skip":
            skipped.append(tensor.name)
        elif "index" in match.groupdict():
            start, end = match.span("index")
            template = tensor.name[:start] + "{}" + tensor.name[end:]
            stacks.setdefault((template, rule.count), {})[int(match["index"])] = tensor
            matched[template] = rule, match
        else:
            entries.append(_single(tensor, rule, match))
    for (template, count), members in stacks.items():
        entries.append(_stack(template, count or 1, members, *matched[template]))
    _refuse_collisions(entries)
    return Plan(entries, skipped)


def _numbered(template: str, index: int) -> str:
    return template.replace("{}", str(index), 1)


def _rule(tensor: Tensor, rules: tuple[Rule, ...]) -> tuple[Rule, re.Match[str]]:
    for rule in rules:
        match = re.fullmatch(rule.name, tensor.name)
        if match:
            return rule, match
    raise InputError(f"{tensor.file}: no place for tensor {tensor.name} in this model")


def _single(tensor: Tensor, rule: Rule, match: re.Match[str]) -> Entry:
    paths = tuple(match.expand(path) for path in rule.to)
    if rule.op == "heads" and (len(tensor.shape) != 2 or tensor.shape[0] % sum(rule.rows)):
        raise InputError(
            f"{tensor.file}: tensor {tensor.name} is {list(tensor.shape)}; "
            f"its rows must be a multiple of {rule.rows[0]} + {rule.rows[1]}"
        )
    value = _note(tensor) if rule.op == "note" else None
    return Entry(rule.op, tensor.name, None, tensor.dtype, tensor.shape, paths, rule.rows, value)


def _stack(template: str, count: int, members: dict[int, Tensor], rule: Rule, match: re.Match[str]) -> Entry:
    first = next(iter(members.values()))
    for index in range(count):
        tensor = members.get(index)
        if tensor is None:
            raise InputError(f"{first.file.parent}: tensor {_numbered(template, index)} is missing")
        if (tensor.dtype, tensor.shape) != (members[0].dtype, members[0].shape):
            raise InputError(
                f"{tensor.file}: tensor {tensor.name} is {tensor.dtype} {list(tensor.shape)}, "
                f"but its neighbours are {members[0].dtype} {list(members[0].shape)}"
            )
    for index, tensor in members.items():
        if index >= count or tensor.name != _numbered(template, index):
            raise InputError(
                f"{tensor.file}: no place for tensor {tensor.name}: the model has {count} of them"
            )
    paths = tuple(match.expand(path) for path in rule.to)
    value = [_note(members[index]) for index in range(count)] if rule.op == "note" else None
    return Entry(rule.op, template, count, first.dtype, first.shape, paths, rule.rows, value)


def _note(tensor: Tensor) -> list:
    """The few integers of a tensor such as ``weight_shape``."""
    if DTYPES[tensor.dtype].kind not in "iu" or tensor.nbytes > 64:
        raise InputError(
            f"{tensor.file}: tensor {tensor.name} is {tensor.dtype} {list(tensor.shape)}, not a shape"
        )
    return tensor.read().tolist()


def _refuse_collisions(entries: list[Entry]) -> None:
    taken: dict[str, str] = {}
    for entry in entries:
        for path in entry.arrays:
            if path in taken:
                raise InputError(
                    f"tensors {taken[path]} and {entry.name} are both {path}: remove one of them"
                )
            taken[path] = entry.name
