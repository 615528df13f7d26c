"""The plots of a report, told apart by marker as well as by colour."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jddtree.sweep.journal import Sweep
from jddtree.sweep.report import Entry, best, by_group, is_exact

# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MARKERS = "osD^vPX*"
STYLE = {
    "font.size": 10,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.dpi": 150,
    "savefig.dpi": 150,
}
LOOKS = {"ar": ("#000000", "-"), "ar-stepwise": ("#888888", ":"), "chain": ("#444444", "--")}
"""Colour and line of the methods that have no budget."""


def draw(sweep: Sweep, folder: Path) -> list[tuple[str, str]]:
    """Draw what the cells allow into ``folder``: (file name, caption) of every plot. Inexact cells are left
    out.
    """
    cells = [entry for entry in sweep.cells if is_exact(entry)]
    made = []
    with mpl.rc_context(STYLE):
        for temperature in dict.fromkeys(entry["cell"]["temperature"] for entry in cells):
            groups = {
                rows: entries for (t, rows), entries in sorted(by_group(cells).items()) if t == temperature
            }
            wanted = {
                f"speed_by_budget_t{temperature:g}.png": (
                    _by_budget(groups),
                    f"Speed against budget at temperature {temperature:g}: medians and 95 % intervals.",
                ),
                f"speed_by_concurrency_t{temperature:g}.png": (
                    _by_concurrency(groups),
                    f"Speed against concurrency at temperature {temperature:g}. Numbers: budget of the best "
                    "tree.",
                ),
                f"acceptance_by_depth_t{temperature:g}.png": (
                    _by_depth(next(iter(groups.values()))),
                    f"Acceptance by depth at temperature {temperature:g}, {next(iter(groups))} at a time, "
                    "no cap on children.",
                ),
            }
            for name, (figure, caption) in wanted.items():
                if figure is not None:
                    figure.savefig(folder / name)
                    made.append((name, caption))
    return made


def _by_budget(groups: dict[int, list[Entry]]) -> Figure | None:
    """A panel a concurrency: trees and wide chains over budgets, the others as lines across."""
    budgets = sorted({e["cell"]["budget"] for cells in groups.values() for e in cells if e["cell"]["budget"]})
    if len(budgets) < 2:
        return None
    across = min(len(groups), 3)
    down = -(-len(groups) // across)
    figure = Figure(figsize=(1.2 + 3.4 * across, 1.1 + 2.7 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    flat = list(axes.flat)
    for unused in flat[len(groups) :]:
        unused.set_visible(False)
    for axis, (rows, cells) in zip(flat, groups.items(), strict=False):
        for name, (colour, style) in LOOKS.items():
            entry = next((e for e in cells if e["name"] == name), None)
            if entry:
                axis.axhline(entry["tokens_per_second"], color=colour, linestyle=style, label=name)
        caps = dict.fromkeys(e["cell"]["topk"] for e in cells if e["cell"]["method"] == "tree")
        lines: list[tuple[str, list[Entry]]] = [
            (
                "tree" if cap is None else f"tree, topk {cap}",
                [e for e in cells if e["cell"]["method"] == "tree" and e["cell"]["topk"] == cap],
            )
            for cap in caps
        ]
        lines.append(("chain@N", [e for e in cells if e["cell"]["method"] == "chain@N"]))
        for index, (label, entries) in enumerate(lines):
            _line(axis, entries, "budget", label, index)
        axis.set_xscale("log", base=2)
        axis.set_xticks(budgets, [str(budget) for budget in budgets])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_title(f"{rows} at a time", fontsize=10)
    _legend(figure, flat[: len(groups)])
    figure.supxlabel("budget (nodes a round verifies)", fontsize=10)
    figure.supylabel("speed, all rows (tokens/s)", fontsize=10)
    return figure


def _by_concurrency(groups: dict[int, list[Entry]]) -> Figure | None:
    """Left the speed of all rows, right the speed-up over plain decoding."""
    if len(groups) < 2:
        return None
    figure = Figure(figsize=(8.6, 3.9), layout="constrained")
    speed, factor = figure.subplots(1, 2)
    for index, method in enumerate(("tree", *LOOKS)):
        entries = [found for cells in groups.values() if (found := best(cells, method))]
        label = "best tree" if method == "tree" else method
        _line(speed, entries, "concurrency", label, index)
        if method == "ar":
            continue
        where = [e["cell"]["concurrency"] for e in entries]
        colour, style = LOOKS.get(method, (COLOURS[index], "-"))
        factor.plot(
            where,
            [e["times_plain"] for e in entries],
            color=colour,
            marker=MARKERS[index],
            markersize=5,
            linestyle=style,
        )
        if method == "tree":
            for x, entry in zip(where, entries, strict=True):
                factor.annotate(
                    str(entry["cell"]["budget"]),
                    (x, entry["times_plain"]),
                    textcoords="offset points",
                    xytext=(0, 7),
                    ha="center",
                    fontsize=8,
                    color=colour,
                )
    factor.axhline(1, color=LOOKS["ar"][0], linewidth=1.2)
    factor.set_ylim(0, 1.15 * max(factor.get_ylim()[1], 1.0))
    fastest = [entry["tokens_per_second"] for cells in groups.values() for entry in cells]
    if max(fastest) > 10 * min(fastest):
        speed.set_yscale("log")
    else:
        speed.set_ylim(bottom=0)
    speed.set_ylabel("speed, all rows (tokens/s)")
    factor.set_ylabel("speed over plain decoding (ar = 1)")
    for axis in (speed, factor):
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(groups), [str(rows) for rows in groups])
        axis.minorticks_off()
        axis.set_xlabel("concurrency (rows at a time)")
    _legend(figure, [speed])
    return figure


def _by_depth(cells: Sequence[Entry]) -> Figure | None:
    """The share of rounds whose accepted path reached each depth."""
    shown = [
        entry
        for entry in cells
        if entry["cell"]["method"] in ("chain", "tree")
        and entry["cell"]["topk"] is None
        and entry["acceptance"]
        and entry["acceptance"]["by_depth"]
    ]
    if not shown:
        return None
    figure = Figure(figsize=(5.6, 3.9), layout="constrained")
    axis = figure.subplots()
    for index, entry in enumerate(shown):
        shares = [100 * share for share in entry["acceptance"]["by_depth"]]
        axis.plot(
            range(1, len(shares) + 1),
            shares,
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            linestyle="--" if entry["name"] == "chain" else "-",
            label=f"{entry['name']}, {entry['committed_per_round']:.2f} committed a round",
        )
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylim(0, 100)
    axis.set_xlabel("depth (drafted tokens on the accepted path)")
    axis.set_ylabel("rounds that reached it (%)")
    axis.legend(fontsize=9)
    return figure


def _line(axis: Axes, entries: Sequence[Entry], key: str, label: str, index: int) -> None:
    """Medians over a number of the cell, with their intervals."""
    if not entries:
        return
    middle = [entry["tokens_per_second"] for entry in entries]
    spans: list[Any] = [entry["interval"] for entry in entries]
    below = [max(y - low, 0.0) for y, (low, _) in zip(middle, spans, strict=True)]
    above = [max(high - y, 0.0) for y, (_, high) in zip(middle, spans, strict=True)]
    colour, style = LOOKS.get(label, (COLOURS[index], "-"))
    axis.errorbar(
        [entry["cell"][key] for entry in entries],
        middle,
        yerr=[below, above],
        color=colour,
        marker=MARKERS[index],
        markersize=5,
        capsize=3,
        linestyle=style,
        label=label,
    )


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, above them."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside upper center", ncols=4)
