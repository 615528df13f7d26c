"""Sentences, ranking and plots of cells made by hand."""

from dataclasses import asdict

import pytest

from jddtree.sweep import plots, report
from jddtree.sweep.grid import Cell
from jddtree.sweep.journal import Sweep


def entry(method: str, rows: int, speed: float, *, budget=None, bugs=0, plain=100.0) -> dict:
    cell = Cell(method, 0.0, rows, budget)
    return {
        "cell": asdict(cell),
        "name": cell.name,
        "texts": 4,
        "tokens_per_second": speed,
        "interval": [speed - 1, speed + 1],
        "row_tokens_per_second": speed / rows,
        "times_plain": speed / plain,
        "sign_test": {"wins": 7, "losses": 1, "p_value": 0.035},
        "committed_per_round": 2.5,
        "committed_by_kind": {"story": 2.5},
        "round_ms": 1.0,
        "host_ms_per_round": 0.1,
        "prefill_ms": 3.0,
        "compile_seconds": 9.0,
        "stage_ms": {"draft": 0.5},
        "acceptance": {
            "by_depth": [0.8, 0.4],
            "by_rank": [0.9, 0.1],
            "nodes": 4.0,
            "wasted": 2.5,
            "experts": [3.0, 5.0],
        },
        "program_bytes": 10_000_000,
        "peak_bytes": None,
        "percent_of_bandwidth": None,
        "exact": {
            "equal": 4 - bugs,
            "ties": 0,
            "bugs": bugs,
            "largest_tie_gap": None,
            "first_bug": "differs: bug" if bugs else None,
        },
    }


def sweep(*cells: dict) -> Sweep:
    about = {
        "device": {"kind": "cpu", "backend": "cpu", "cores": 2},
        "versions": {"jax": "0"},
        "commit": None,
        "commands": ["python -m jddtree.sweep"],
        "target": {"name": "big", "content": "0123456789abcdef"},
        "drafter": None,
        "dtype": "float32",
        "prompts": {"count": 4},
        "settings": {
            "prompts": "bundled",
            "max_new_tokens": 8,
            "ignore_eos": False,
            "repetitions": 3,
            "seed": 0,
            "layout": "tp1",
        },
    }
    return Sweep(about, list(cells))


CELLS = [
    entry("ar-stepwise", 1, 50),
    entry("ar", 1, 100),
    entry("chain", 1, 150),
    entry("tree", 1, 180, budget=4),
    entry("tree", 1, 200, budget=8),
    entry("ar", 4, 100),
    entry("chain", 4, 120),
    entry("tree", 4, 90, budget=8),
]


def test_factors_and_crossings_are_stated():
    text = "\n".join(report.findings(sweep(*CELLS)))
    assert "`ar` is 2.00 times as fast as `ar-stepwise`" in text
    assert "1 at a time: `tree(8)` is 2.00 times as fast as `ar` (faster in 7 of 8 pairs" in text
    assert "the best of 2, chosen by these same figures" in text
    assert "best tree crosses `ar` between 1 and 4 at a time" in text
    assert (
        "best chain is faster than `ar` at every concurrency measured, 1 to 4. A sign test agrees (p < 0.05) "
        "at 1, 4" in text
    )
    assert "highest median: `tree` at 1, `chain` at 4 at a time" in text
    assert "of 32 texts over all cells 32 equal" in text
    table = list(report.factors(CELLS))
    assert table[2:] == [
        "| 0 | 1 | 100.0 | 2.00 | 1.50 | 0.035 | 2.00 tree(8) | 0.035 |",
        "| 0 | 4 | 100.0 |  | 1.20 | 0.035 | 0.90 tree(8) | 0.035 |",
    ]


def test_an_inexact_cell_is_marked_and_never_ranked(tmp_path):
    wrong = entry("tree", 1, 900, budget=16, bugs=1)
    found = sweep(*CELLS, wrong)
    assert report.best(found.cells, "tree")["cell"]["budget"] == 8
    assert "INEXACT" in report.row(wrong)[3] and report.exact(wrong) == "3 of 4 equal, 1 bug: INEXACT"
    text = "\n".join(report.findings(found))
    assert "9.00" not in text and "INEXACT, and so in no ranking: `tree(16)`" in text


def test_the_page_shows_every_plot_that_was_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    page = report.write(sweep(*CELLS), tmp_path / "new").read_text()
    drawn = sorted(file.name for file in (tmp_path / "new").glob("*.png"))
    assert drawn == ["acceptance_by_depth_t0.png", "speed_by_budget_t0.png", "speed_by_concurrency_t0.png"]
    assert all(f"]({name})" in page for name in drawn)
    assert "| tree(8) | 200.0 [199.0, 201.0] |" in page
    # One concurrency, one budget: nothing to draw a line through.
    assert plots.draw(sweep(entry("ar", 1, 100)), tmp_path) == []
