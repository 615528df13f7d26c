"""A sweep as a report: Markdown tables, what they come to, and plots."""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jddtree.errors import InputError
from jddtree.sweep.journal import Sweep

Entry = dict[str, Any]

SURE = 0.05
"""Level of the sign test."""

COLUMNS = (
    "method",
    "tokens/s [95 %]",
    "of a row",
    "x ar",
    "p",
    "committed a round",
    "ms a round",
    "of bandwidth",
    "equal to ar",
)


def require_matplotlib() -> None:
    """Raise InputError where plots cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--report draws with matplotlib: pip install 'jddtree[report]'")


def write(sweep: Sweep, folder: Path) -> Path:
    """Write report.md and its plots into ``folder``, made if needed; the path of the report."""
    # Here, since only reports need matplotlib.
    from jddtree.sweep import plots

    if not sweep.cells:
        raise InputError("the sweep holds no finished cell to report on")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = plots.draw(sweep, folder)
    place = folder / "report.md"
    place.write_text("\n".join(_page(sweep, drawn)) + "\n", encoding="utf-8")
    return place


def is_exact(entry: Entry) -> bool:
    """Whether the cell may be ranked: every text is plain decoding's, or a tie within rounding."""
    return not entry["exact"]["bugs"]


def times(entry: Entry) -> str:
    """The speed-up over plain decoding; none for an inexact cell."""
    if not is_exact(entry):
        return "INEXACT"
    return "-" if entry["times_plain"] is None else f"{entry['times_plain']:.2f} x ar"


def exact(entry: Entry) -> str:
    """The exactness line of a cell."""
    return exact_short(entry).replace(f"of {entry['texts']}", f"of {entry['texts']} equal", 1)


def exact_short(entry: Entry) -> str:
    """The same for a column that says "equal"."""
    found = entry["exact"]
    line = f"{found['equal']} of {entry['texts']}"
    if found["ties"]:
        line += f", {_count(found['ties'], 'tie')} (gap to {found['largest_tie_gap']:.1e})"
    return line + (f", {_count(found['bugs'], 'bug')}: INEXACT" if found["bugs"] else "")


def row(entry: Entry) -> list[str]:
    """A line of the speed table, in the order of `COLUMNS`."""
    low, high = entry["interval"] or (0.0, 0.0)
    plain, share = entry["name"] == "ar", entry["percent_of_bandwidth"]
    return [
        entry["name"],
        f"{entry['tokens_per_second']:.1f} [{low:.1f}, {high:.1f}]",
        f"{entry['row_tokens_per_second']:.1f}",
        times(entry).removesuffix(" x ar"),
        "" if plain or not is_exact(entry) else f"{entry['sign_test']['p_value']:.2g}",
        _number(entry["committed_per_round"]),
        f"{entry['round_ms']:.2f}",
        "" if share is None else f"{share:.0f} %",
        exact_short(entry),
    ]


def by_group(cells: Sequence[Entry]) -> dict[tuple[float, int], list[Entry]]:
    """Cells by (temperature, concurrency)."""
    found: dict[tuple[float, int], list[Entry]] = {}
    for entry in cells:
        key = entry["cell"]["temperature"], entry["cell"]["concurrency"]
        found.setdefault(key, []).append(entry)
    return found


def best(cells: Sequence[Entry], method: str) -> Entry | None:
    """The fastest exact cell of a method, of those that had rounds."""
    ranked = [
        entry
        for entry in cells
        if entry["cell"]["method"] == method and is_exact(entry) and entry["times_plain"]
    ]
    return max(ranked, key=lambda entry: entry["tokens_per_second"], default=None)


def findings(sweep: Sweep) -> Iterator[str]:
    """What the figures come to, a sentence each: the factors at the lowest concurrency (`factors` has them at
    all), where methods cross, and exactness.
    """
    groups = by_group(sweep.cells)
    for temperature in dict.fromkeys(temperature for temperature, _ in groups):
        found = {rows: cells for (t, rows), cells in sorted(groups.items()) if t == temperature}
        rows, cells = next(iter(found.items()))
        where = f"Temperature {temperature:g}, {rows} at a time"
        naive = best(cells, "ar-stepwise")
        if naive:
            yield f"{where}: `ar` is {1 / naive['times_plain']:.2f} times as fast as `ar-stepwise`."
        for entry in [fastest for method in ("chain", "tree") if (fastest := best(cells, method))]:
            test = entry["sign_test"]
            rivals = sum(other["cell"]["method"] == entry["cell"]["method"] for other in cells)
            yield (
                f"{where}: `{entry['name']}` is {entry['times_plain']:.2f} times as fast as `ar` "
                f"(faster in {test['wins']} of {test['wins'] + test['losses']} pairs, sign test "
                f"p = {test['p_value']:.2g}"
                + (f"; the best of {rivals}, chosen by these same figures)." if rivals > 1 else ").")
            )
        for method in ("chain", "tree"):
            yield from _crossing(method, temperature, groups)
        if len(found) > 1:
            yield f"Temperature {temperature:g}, highest median: {_fastest(found)}."
    wrong = [entry for entry in sweep.cells if not is_exact(entry)]
    if wrong:
        names = ", ".join(f"`{e['name']}` ({e['cell']['concurrency']} at a time)" for e in wrong)
        yield f"INEXACT, and so in no ranking: {names}. First: {wrong[0]['exact']['first_bug']}."
    else:
        ties = sum(entry["exact"]["ties"] for entry in sweep.cells)
        texts = sum(entry["texts"] for entry in sweep.cells)
        yield (
            f"Exact: of {texts} texts over all cells {texts - ties} equal plain decoding's token for token"
            + (f"; {_count(ties, 'text')} part from it at a tie within rounding." if ties else ".")
        )


def _fastest(groups: dict[int, list[Entry]]) -> str:
    """Which method has the highest median at which concurrency."""
    at: dict[str, list[int]] = {}
    for rows, cells in groups.items():
        ranked = [found for method in ("ar", "chain", "tree") if (found := best(cells, method))]
        if ranked:
            winner = max(ranked, key=lambda entry: entry["times_plain"])
            at.setdefault(winner["cell"]["method"], []).append(rows)
    return ", ".join(f"`{method}` at {_list(rows)}" for method, rows in at.items()) + " at a time"


def factors(cells: Sequence[Entry]) -> Iterator[str]:
    """A table with a line for every temperature and concurrency: what each method's best cell gains."""
    lines = []
    for (temperature, rows), group in sorted(by_group(cells).items()):
        plain, naive = best(group, "ar"), best(group, "ar-stepwise")
        line = [f"{temperature:g}", str(rows), "" if plain is None else f"{plain['tokens_per_second']:.1f}"]
        line.append(f"{1 / naive['times_plain']:.2f}" if naive else "")
        for method in ("chain", "tree"):
            found = best(group, method)
            if found is None:
                line += ["", ""]
            else:
                p = f"{found['sign_test']['p_value']:.2g}"
                name = "" if method == "chain" else f" {found['name']}"
                line += [f"{found['times_plain']:.2f}{name}", p]
        lines.append(line)
    titles = ["T", "at a time", "ar, tokens/s", "ar / ar-stepwise", "chain / ar", "p", "best tree / ar", "p"]
    yield from _table(titles, lines)


def _crossing(method: str, temperature: float, groups: dict[tuple[float, int], list[Entry]]) -> Iterator[str]:
    """Where plain decoding overtakes a method's best cell, by the medians, and where a test agrees."""
    found = {
        rows: entry
        for (t, rows), cells in sorted(groups.items())
        if t == temperature and (entry := best(cells, method))
    }
    if len(found) < 2:
        return
    faster = [rows for rows, entry in found.items() if entry["times_plain"] > 1]
    slower = [rows for rows, entry in found.items() if entry["times_plain"] <= 1]
    name = f"Temperature {temperature:g}: the best {method}"
    sure = [rows for rows in faster if found[rows]["sign_test"]["p_value"] < SURE]
    where = f"at {_list(sure)} at a time" if sure else "nowhere"
    tested = "" if not faster else f" A sign test agrees (p < {SURE:g}) {where}."
    if not slower:
        yield (
            f"{name} is faster than `ar` at every concurrency measured, {min(found)} to {max(found)}.{tested}"
        )
    elif not faster:
        yield f"{name} is never faster than `ar` from {min(found)} to {max(found)} at a time."
    elif max(faster) < min(slower):
        yield f"{name} crosses `ar` between {max(faster)} and {min(slower)} at a time.{tested}"
    else:
        yield f"{name} is faster than `ar` at {_list(faster)} at a time, and not at {_list(slower)}.{tested}"


def _page(sweep: Sweep, drawn: Sequence[tuple[str, str]]) -> Iterator[str]:
    about, settings = sweep.environment, sweep.environment["settings"]
    target, drafter = about["target"], about["drafter"]
    pair = target["name"] + (f" with {drafter['name']}" if drafter else "")
    device = about["device"]
    yield f"# {pair} on {device['kind']}"
    yield ""
    for sentence in findings(sweep):
        yield f"- {sentence}"
    yield ""
    yield "## What ran"
    yield ""
    models = [("target", target)] + ([("drafter", drafter)] if drafter else [])
    yield from _table(
        ["what", "value"],
        [
            ["device", f"{device['kind']} ({device['backend']}), {device['cores']} CPU cores"],
            ["versions", ", ".join(f"{name} {number}" for name, number in about["versions"].items())],
            ["commit", about["commit"] or "unknown"],
            *([role, f"{model['name']}, content {model['content'][:12]}"] for role, model in models),
            ["dtype", about["dtype"]],
            ["prompts", f"{about['prompts']['count']} of {settings['prompts']}"],
            [
                "text",
                f"at most {settings['max_new_tokens']} tokens"
                + (", ends ignored" if settings["ignore_eos"] else ""),
            ],
            ["layout", f"{settings['layout']}"],
            ["repetitions", f"{settings['repetitions']} after a warm-up"],
        ],
    )
    yield ""
    for command in about["commands"]:
        yield f"    {command}"
    yield ""
    yield "## Speed"
    if len(by_group(sweep.cells)) > 1:
        yield from ("", "### Factors", "")
        yield from factors(sweep.cells)
    for (temperature, rows), cells in by_group(sweep.cells).items():
        yield from ("", f"### Temperature {temperature:g}, {rows} at a time", "")
        yield from _table(COLUMNS, [row(entry) for entry in cells])
    for file, caption in drawn:
        yield from ("", f"![{caption}]({file})", "", caption)
    yield from ("", "## Acceptance", "")
    yield from _acceptance(sweep.cells)
    yield from ("", "## Where the time goes", "")
    yield from _rounds(sweep.cells)
    yield from ("", "## How it was measured", "", _METHOD)


_METHOD = """\
Cells of one temperature and concurrency take turns, repetition by repetition, in one process; everything is
compiled before, and every cell decodes one batch as a warm-up. Speed counts the tokens that rounds emit
(all but a prefill's first) over the seconds from a chunk's dispatch until its tokens are on the host;
prefills, compiling and the host's own work between chunks are given apart. It is the median over
repetitions, with a bootstrap interval of that median. "Of a row" divides each row's tokens by the seconds
until that row ended. p is a one-sided exact sign test of "fewer seconds a token than `ar`" over pairs
(batch, repetition). A text is equal if it is plain decoding's of the same run, token for token; a tie is a
first difference where plain decoding's two best logits are closer than rounding moves them (1e-4 in
float32, 0.25 in bfloat16); anything else is a bug, and its cell is INEXACT and in no ranking. `ar` runs the
same compiled loop with nothing drafted, `ar-stepwise` one compiled step a token with argmax and ends of
texts on the host. `chain@N` verifies a chain in a pass of N + 1 slots. "Of bandwidth" is the time that a
round's least bytes (weights touched once a pass, distinct experts, committed caches) take at the device's
reading speed, over the round's."""


def _acceptance(cells: Sequence[Entry]) -> Iterator[str]:
    kinds = list(dict.fromkeys(kind for entry in cells for kind in entry["committed_by_kind"]))
    # Rows, and so all of this, do not depend on how many there are at a time but for the experts.
    yield from _table(
        ["T", "at a time", "method", *kinds, "rounds that reached depth 1, 2, ...",
         "accepted as 1st, 2nd, ... child", "nodes", "wasted", "experts a layer"],
        [
            [
                f"{entry['cell']['temperature']:g}",
                str(entry["cell"]["concurrency"]),
                entry["name"],
                *(_number(entry["committed_by_kind"].get(kind)) for kind in kinds),
                _percents(found["by_depth"]),
                _percents(found["by_rank"]),
                f"{found['nodes']:.1f}",
                f"{found['wasted']:.1f}",
                _number(sum(found["experts"]) / len(found["experts"])) if found["experts"] else "",
            ]
            for entry in cells
            if (found := entry["acceptance"])
        ],
    )  # fmt: skip


def _rounds(cells: Sequence[Entry]) -> Iterator[str]:
    ran = {name for entry in cells for name in entry["stage_ms"]}
    stages = [name for name in ("draft", "build", "verify", "accept", "commit") if name in ran]
    yield (
        "Stages are run apart, each with its own dispatch, after a prompt. Programs compile side by side, so "
        "that their seconds overlap. Peak memory is the process's so far."
    )
    yield ""
    yield from _table(
        ["T", "at a time", "method", "ms a round", *(f"{stage} ms" for stage in stages), "host ms",
         "prefill ms", "compile s", "program MB", "peak MB"],
        [
            [
                f"{entry['cell']['temperature']:g}",
                str(entry["cell"]["concurrency"]),
                entry["name"],
                f"{entry['round_ms']:.2f}",
                *(_number(entry["stage_ms"].get(stage)) for stage in stages),
                _number(entry["host_ms_per_round"]),
                f"{entry['prefill_ms']:.1f}",
                f"{entry['compile_seconds']:.1f}",
                *(
                    "" if entry[size] is None else f"{entry[size] / 1e6:.0f}"
                    for size in ("program_bytes", "peak_bytes")
                ),
            ]
            for entry in cells
        ],
    )  # fmt: skip


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percents(shares: Sequence[float]) -> str:
    return " ".join(f"{100 * share:.0f}" for share in shares) + (" %" if shares else "")


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
