"""Word problems with worked steps: unlimited text whose answers are right."""

import random
from collections.abc import Callable, Iterator

from scripts.pair.problem_measures import MEASURE_FORMS
from scripts.pair.problem_money import MONEY_FORMS
from scripts.pair.problem_things import THINGS_FORMS

# A form that is listed twice is drawn twice as often.
FORMS: tuple[Callable[[random.Random], tuple[str, str]], ...] = (
    *THINGS_FORMS,
    *MONEY_FORMS,
    *MEASURE_FORMS,
)


def problems(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """``count`` different (prompt, worked answer) pairs; every answer ends with ``The answer is N.``"""
    rng, seen = random.Random(seed), set()
    while len(seen) < count:
        prompt, answer = rng.choice(FORMS)(rng)
        if prompt not in seen:
            seen.add(prompt)
            yield prompt, answer
