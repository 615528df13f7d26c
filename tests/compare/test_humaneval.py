"""Programs that pass, fail, end early, or take too much."""

import pytest

from jddtree.compare.__main__ import main
from jddtree.compare.humaneval import passes, program

ENTRY = {
    "entry_point": "add",
    "prompt": 'import math\n\n\ndef add(a, b):\n    """Add."""\n',
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert math.pi > 3\n",
}
RIGHT = "    return a + b\n"


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        (RIGHT, True),
        ("Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", True),
        ("```\ndef add(a, b):\n    return a + b\n", True),
        ("    return a - b\n", False),
        ("    raise SystemExit(0)\n", False),
        ("", False),
        ("no code at all", False),
        ("    while True:\n        print('x' * 1000)\n", False),
        ("    return len(bytearray(4 << 30)) and a + b\n", False),
    ],
)
def test_answers(answer, passed):
    assert passes(ENTRY, answer, 20.0) == passed


def test_a_program_that_does_not_end_fails():
    assert not passes(ENTRY, "    while True:\n        pass\n", 0.5)


def test_an_answer_that_defines_the_function_replaces_the_problems_text():
    assert program(ENTRY, "```python\ndef add(a, b):\n    return 0\n```").count("def add") == 1
    assert program(ENTRY, RIGHT).startswith(ENTRY["prompt"])


def test_nothing_runs_unasked(capsys):
    assert main(["humaneval"]) == 2
    assert "add --run-code" in capsys.readouterr().err
