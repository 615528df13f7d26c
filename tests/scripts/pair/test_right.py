"""Reading numbers out of answers."""

import pytest

from scripts.pair.right import final_number, stated


@pytest.mark.parametrize(
    ("text", "number", "last"),
    [
        ("6 * 7 = 42.\nThe answer is 42.", 42, 42),
        ("The answer is 3. No: The answer is 4.5. There are 2.", 4.5, 4.5),
        ("The answer is $1,200.", 1200, 1200),
        ("So 9 - 12 is -3", None, -3),
        ("I do not know.", None, None),
    ],
)
def test_the_answer_is_the_stated_number_else_the_last(text, number, last):
    assert (stated(text), final_number(text)) == (number, last)
