"""Generated word problems are right."""

import re

from scripts.pair.problems import FORMS, problems

STEP = re.compile(r"(\d+(?: [-+*/] \d+)+) = (\d+)")


def test_every_step_and_answer_is_right():
    made = dict(problems(400, seed=0))
    assert len(made) == 400
    for prompt, answer in made.items():
        steps = STEP.findall(answer)
        assert steps
        for left, right in steps:
            assert eval(left) == int(right), answer
        assert answer.endswith(f"\nThe answer is {steps[-1][1]}.")
        given = re.findall(r"\d+", prompt)
        assert len(given) >= 2 or "as many" in prompt


def test_every_form_is_drawn():
    assert len({prompt.split()[0] for prompt, _ in problems(300, seed=1)}) > len(FORMS)
    assert list(problems(50, seed=2)) == list(problems(50, seed=2))
