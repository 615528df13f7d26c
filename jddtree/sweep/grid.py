"""The grid of a sweep: methods x budgets x topk x temperatures x concurrency, as cells in groups."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jddtree.errors import InputError
from jddtree.state import Method

METHODS = ("ar-stepwise", "ar", "chain", "chain@N", "tree")
_WIDE_CHAIN = re.compile(r"chain@(N|[1-9]\d*)")


@dataclass(frozen=True)
class Cell:
    """What is measured as one.

    method: "ar-stepwise", "ar", "chain", "chain@N" or "tree". budget: nodes a round verifies, of "chain@N"
    and "tree" alone. topk: children a node may have, of "tree" alone; None: no cap. concurrency: rows.
    """

    method: str
    temperature: float
    concurrency: int
    budget: int | None = None
    topk: int | None = None

    @property
    def name(self) -> str:
        """The method as tables and legends have it: "tree(16, topk 4)"."""
        if self.method == "chain@N":
            return f"chain@{self.budget}"
        if self.method != "tree":
            return self.method
        return f"tree({self.budget})" if self.topk is None else f"tree({self.budget}, topk {self.topk})"

    def program(self, block_size: int) -> Method:
        """What its rounds are compiled for; a step-by-step cell is a plain one."""
        if self.method == "tree":
            return Method.tree(block_size, self.budget or 0)
        return Method.plain() if self.method.startswith("ar") else Method.chain(block_size, self.budget)


def place(cell: Cell) -> tuple[float, int, int, int, int]:
    """Where a cell stands among others: by temperature, rows, method (``ar`` first), budget and cap."""
    order = ("ar", *METHODS)  # finds the first of the two
    cap = 0 if cell.topk is None else cell.topk
    return cell.temperature, cell.concurrency, order.index(cell.method), cell.budget or 0, cap


@dataclass(frozen=True)
class Group:
    """Cells that are compared with each other: their repetitions take turns, and ``ar`` is among them."""

    temperature: float
    concurrency: int
    cells: tuple[Cell, ...]


def check_methods(methods: Sequence[str], budgets: Sequence[int]) -> None:
    """Raise InputError unless every method is known and has a budget to run at."""
    for method in methods:
        if method not in METHODS and not _WIDE_CHAIN.fullmatch(method):
            raise InputError(f"--methods: {method!r} is none of {', '.join(METHODS)} (N may be a number)")
        if method in ("tree", "chain@N") and not budgets:
            raise InputError(f"--methods {method} needs --budgets")
    for budget in budgets:
        if budget < 1:
            raise InputError(f"--budgets must be 1 or more, not {budget}: without nodes it is method ar")


def groups(
    methods: Sequence[str],
    budgets: Sequence[int],
    topk: Sequence[int | None],
    temperatures: Sequence[float],
    concurrency: Sequence[int],
) -> list[Group]:
    """Every cell once. ``ar``, the baseline, comes first in every group, asked for or not; the steps of
    ``ar-stepwise`` choose greedily, so it is left out where texts are sampled.
    """
    found = []
    for temperature in temperatures:
        for rows in concurrency:
            cells = [Cell("ar", temperature, rows)]
            for method in methods:
                if method == "ar-stepwise" and temperature > 0:
                    continue
                cells += _cells(method, budgets, topk, temperature, rows)
            found.append(Group(temperature, rows, tuple(dict.fromkeys(cells))))
    return found


def _cells(
    method: str, budgets: Sequence[int], topk: Sequence[int | None], temperature: float, rows: int
) -> Iterator[Cell]:
    wide = _WIDE_CHAIN.fullmatch(method)
    if wide:
        widths = budgets if wide[1] == "N" else [int(wide[1])]
        yield from (Cell("chain@N", temperature, rows, width) for width in widths)
    elif method == "tree":
        # A cap of the budget or more caps nothing.
        yield from (
            Cell("tree", temperature, rows, budget, cap if cap is not None and cap < budget else None)
            for budget in budgets
            for cap in topk
        )
    else:
        yield Cell(method, temperature, rows)
