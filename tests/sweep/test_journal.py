"""The file of a sweep: resuming, what must not change, and what an interrupt leaves."""

import json
from dataclasses import asdict

import pytest

from jddtree.errors import InputError
from jddtree.sweep.grid import Cell
from jddtree.sweep.journal import FIGURES, SAME, Journal, command, read

ABOUT = {name: name for name in SAME} | {
    "kind": "environment",
    "format": 2,
    "target": {"name": "t", "content": "a"},
    "settings": {"limit": 4, "seed": 0},
    "commands": ["x"],
}


def line(cell: Cell) -> dict:
    return dict.fromkeys(FIGURES) | {"kind": "cell", "cell": asdict(cell)}


CELLS = [line(Cell("tree", 0.0, 1, budget)) for budget in (4, 8)]


def test_finished_cells_are_found_again_and_half_a_line_goes(tmp_path, capsys):
    file = tmp_path / "sweep.jsonl"
    first = Journal(file, ABOUT)
    first.add(CELLS[0])
    with file.open("a") as half:
        half.write('{"kind": "cell", "cel')
    assert read(file).cells == CELLS[:1]
    assert capsys.readouterr().err == f"note: {file}, line 3 is cut off in the middle: left out\n"
    again = Journal(file, ABOUT | {"commands": ["another"]})
    assert list(again.finished) == [Cell("tree", 0.0, 1, 4)]
    plain = line(Cell("ar", 0.0, 1))
    for cell in (CELLS[1], plain):
        again.add(cell)
    found = read(file)
    assert found.cells == again.sweep().cells == [plain, *CELLS]
    assert found.environment["commands"] == ["x", "another"]
    Journal(file, ABOUT)
    assert read(file).environment["commands"] == ["x", "another"]


def test_plain_decoding_without_a_drafter_joins_a_sweep_with_one(tmp_path):
    file, drafter = tmp_path / "sweep.jsonl", {"name": "d", "content": "a"}
    for mine in (None, drafter, None):
        Journal(file, ABOUT | {"drafter": mine})
    assert read(file).environment["drafter"] == drafter
    with pytest.raises(InputError, match=r"of another drafter \(d\)"):
        Journal(file, ABOUT | {"drafter": {"name": "d", "content": "b"}})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"settings": {"limit": 8, "seed": 0}}, r"other flags \(limit 4, not 8\)"),
        ({"target": {"name": "t", "content": "b"}}, "of another target"),
        ({"prompts": {"count": 1}}, "of other prompts"),
        ({"commit": "1"}, "of another commit"),
        ({"device": "1"}, "of another device"),
    ],
)
def test_a_sweep_of_something_else_is_not_gone_on_with(tmp_path, change, reason):
    file = tmp_path / "sweep.jsonl"
    Journal(file, ABOUT)
    with pytest.raises(InputError, match=reason):
        Journal(file, ABOUT | change)


@pytest.mark.parametrize("text", ["", "hi\n", "[1]\n", '{"kind": "cell"}\n'])
def test_files_that_are_no_sweeps(tmp_path, text):
    (tmp_path / "a").write_text(text)
    with pytest.raises(InputError, match="is no sweep"):
        read(tmp_path / "a")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([ABOUT, CELLS[0], ABOUT, CELLS[1]], "line 3 begins another sweep"),
        ([ABOUT, CELLS[0], "{", CELLS[1]], "line 3 is not JSON; remove the line"),
        ([ABOUT, {"kind": "cell"}], r"line 2 is damaged \(no cell of this version\)"),
        ([ABOUT, CELLS[0] | {"cell": CELLS[0]["cell"] | {"method": "x"}}], "line 2 is damaged"),
        ([ABOUT, CELLS[0] | {"cell": CELLS[0]["cell"] | {"temperature": None}}], "line 2 is damaged"),
        ([ABOUT, {key: CELLS[0][key] for key in CELLS[0] if key != "exact"}], r"damaged \(no exact\)"),
        ([ABOUT, CELLS[0], CELLS[0]], r"line 3 holds tree\(4\) a second time"),
        ([{key: ABOUT[key] for key in ABOUT if key != "settings"}], r"damaged \(no settings\)"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, lines, reason):
    text = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines)
    (tmp_path / "a").write_text(text)
    with pytest.raises(InputError, match=reason):
        read(tmp_path / "a")


def test_the_command_line_says_nothing_of_where_files_go():
    words = ["--budgets", "4", "--out", "/a/b", "--report=/c", "--cache-dir", "d", "--quick"]
    assert command(words) == "python -m jddtree.sweep --budgets 4 --quick"


def test_lines_are_json(tmp_path):
    Journal(tmp_path / "a", ABOUT).add(CELLS[0])
    assert [json.loads(line)["kind"] for line in (tmp_path / "a").read_text().splitlines()] == [
        "environment",
        "cell",
    ]
