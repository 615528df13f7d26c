"""Generated word problems are right and read well."""

import random
import re

import pytest

from scripts.pair.problem_draft import Draft
from scripts.pair.problem_words import THINGS, plural, spoken
from scripts.pair.problems import FORMS, problems

STEP = re.compile(r"(\d+(?: [-+*/] \d+)+) = (\d+)(?: (\w+))?")
UNIT = re.compile(r"= (\d+) (\w[\w ]*)\.")

UNITS = (
    "leg dollar euro coin pound cent mile kilometer year degree minute hour day second month page liter meter"
)
SINGULAR = {*THINGS, *UNITS.split(), "kilogram", "square meter"} - {"dice"}


@pytest.mark.parametrize("form", dict.fromkeys(FORMS), ids=lambda form: form.__name__)
def test_arithmetic_and_wording(form):
    rng = random.Random(form.__name__)
    for _ in range(60):
        prompt, answer = form(rng)
        steps = STEP.findall(answer)
        assert steps
        for left, right, _ in steps:
            assert eval(left) == int(right), answer
        assert answer.endswith(f"\nThe answer is {steps[-1][1]}.")
        assert not re.search(r"[{}\[\]|]|  |\bNone\b", prompt + answer), prompt
        assert prompt[0].isupper() or prompt[0].isdigit()
        assert prompt[-1] in "?."
        assert not re.search(r"[.?] [a-z]|\ba [aeio]|\ban [bcdfgk]", prompt), prompt
        for count, noun in UNIT.findall(answer):
            assert (count == "1") == (noun in SINGULAR), answer


def test_different_and_reproducible():
    made = list(problems(300, seed=2))
    assert len({prompt for prompt, _ in made}) == 300
    assert made == list(problems(300, seed=2)) != list(problems(300, seed=3))


def test_steps_refuse_what_is_no_count():
    draft = Draft(random.Random(0))
    assert draft.step("So", 7, "+", 5, "-", 2, unit="leaf") == 10
    assert draft.step("So", 3, "/", 3, unit="leaf") == 1
    assert draft.lines == ["So 7 + 5 - 2 = 10 leaves.", "So 3 / 3 = 1 leaf."]
    for parts in ((3, "-", 5), (7, "/", 2)):
        with pytest.raises(ValueError, match="no whole number"):
            draft.step("So", *parts)


def test_words():
    assert [plural(noun) for noun in ("box", "cherry", "toy car", "day", "goose")] == [
        "boxes",
        "cherries",
        "toy cars",
        "days",
        "geese",
    ]
    assert [spoken(n) for n in (0, 13, 40, 57, 100)] == ["zero", "thirteen", "forty", "fifty-seven", "100"]
