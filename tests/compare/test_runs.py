"""Two files side by side."""

import json

import pytest

from jddtree.compare.__main__ import main
from jddtree.sweep.journal import FORMAT
from tests.sweep.test_report import CELLS, entry, sweep

RECORD = {
    "prompt_ids": [1],
    "output_ids": [5, 6, 7],
    "margins": [1.0, 5e-5, 1.0],
    "policy": {"temperature": 0.0},
    "method": "tree",
    "dtype": "float32",
    "finish_reason": "length",
    "committed_per_round": 2.0,
    "tokens_per_second": None,
}


@pytest.fixture
def call(tmp_path, capsys):
    """Compare two values as files: exit status and all that was said."""

    def run(a, b) -> tuple[int, str]:
        for name, value in (("a", a), ("b", b)):
            (tmp_path / name).write_text(value if isinstance(value, str) else json.dumps(value))
        status = main(["runs", str(tmp_path / "a"), str(tmp_path / "b")])
        out, err = capsys.readouterr()
        return status, out + err

    return run


def test_texts(call):
    assert call(RECORD, RECORD)[0] == 0
    other = RECORD | {"output_ids": [5, 9, 7]}
    status, said = call({"outputs": [RECORD, other]}, {"outputs": [RECORD, RECORD]})
    assert status == 0 and "text 1: equal to tree of" in said
    assert "text 2: differs from tree" in said and "tie within rounding: 1 of 2" in said.splitlines()[-1]
    status, said = call(RECORD | {"output_ids": [5, 6, 8]}, RECORD)
    assert status == 1 and said.splitlines()[-1].startswith("bug: 1 of 1")


def test_plain_decoding_is_the_truth_wherever_it_stands(call):
    plain = RECORD | {"method": "ar"}
    sure = RECORD | {"output_ids": [5, 9, 7], "margins": [1.0, 1.0, 1.0]}
    for files in ((plain, sure), (sure, plain)):
        status, said = call(*files)
        assert status == 0 and "differs from ar of" in said


def test_bfloat16_excuses_more(call):
    record = RECORD | {"margins": [1.0, 0.2, 1.0]}
    other = record | {"output_ids": [5, 9, 7]}
    assert call(other, record)[0] == 1
    assert call(other | {"dtype": "bfloat16"}, record)[0] == 0


def lines(found) -> str:
    about = found.environment | {"kind": "environment", "format": FORMAT}
    return "".join(json.dumps(line) + "\n" for line in (about, *found.cells))


def with_outputs(cells, ids):
    texts = [{"output_ids": ids, "margins": [1.0] * len(ids)}]
    return [cell | {"kind": "cell", "outputs": texts if cell["name"] == "ar" else None} for cell in cells]


def test_sweeps(call):
    a = sweep(*with_outputs(CELLS, [1, 2]))
    a.environment["prompts"]["content"] = "p"
    status, said = call(lines(a), lines(a))
    assert status == 0 and said.splitlines()[-1] == "equal"
    b = sweep(*with_outputs(CELLS, [1, 3]))
    b.environment["prompts"]["content"] = "p"
    status, said = call(lines(a), lines(b))
    assert status == 1 and "bug: 2 of 2 texts" in said
    broken = sweep(*with_outputs([*CELLS[:3], entry("tree", 1, 1, budget=4, bugs=1)], [1, 2]))
    broken.environment["prompts"]["content"] = "p"
    status, said = call(lines(a), lines(broken))
    assert status == 1 and "INEXACT" in said
    b.environment["prompts"]["content"] = "q"
    status, said = call(lines(a), lines(b))
    assert status == 2 and "different prompts" in said


def test_sweeps_of_other_seeds_compare_greedy_cells_alone(call):
    greedy, other = (sweep(*with_outputs(CELLS, [1])) for _ in range(2))
    other.environment["settings"]["seed"] = 1
    for one in (greedy, other):
        one.environment["prompts"]["content"] = "p"
    assert call(lines(greedy), lines(other))[0] == 0
    for one in (greedy, other):
        one.cells[:] = [cell | {"cell": cell["cell"] | {"temperature": 1.0}} for cell in one.cells]
    status, said = call(lines(greedy), lines(other))
    assert status == 2 and "is sampled with --seed 0" in said


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (RECORD, RECORD | {"prompt_ids": [2]}, "text 1: the prompt is not the same"),
        (RECORD, RECORD | {"policy": {"temperature": 1.0}}, "text 1: the policy is not the same"),
        (RECORD, {"outputs": [RECORD, RECORD]}, "holds 1 text, "),
        (RECORD, {"output_ids": [1]}, "neither the JSON of this version's generate nor a sweep"),
        ({"outputs": []}, {"outputs": []}, "holds no text"),
        (RECORD, RECORD | {"output_ids": [5, 6]}, "text 1 was cut after 2 tokens in one file and 3"),
        (RECORD, "hi\n", "is neither generate's JSON nor a sweep"),
        (RECORD, lines(sweep(*with_outputs(CELLS, [1]))), "is a sweep, the other is not"),
    ],
)
def test_what_cannot_be_compared(call, a, b, reason):
    status, said = call(a, b)
    assert status == 2 and reason in said
