"""Each rule drops what it names, and good texts stay."""

import pytest

from scripts.pair.teacher_filters import Raw, judged

GOOD = (
    "Once there was a miller who lived beside a wide river. Every morning he opened the heavy gate, and "
    "water turned his wooden wheel. One day a small otter came and asked for bread. \u201cTake this,\u201d "
    "said the old man, and they became friends for many years."
)
CODE = (
    '```python\ndef double(number):\n    """Twice a number."""\n    return 2 * number\n```\n'
    "Call it with any number."
)


def verdict(text: str, kind: str = "story", *, logprob=-0.5, finished=True) -> tuple[str, str]:
    return judged(Raw(kind, "Tell me.", text, max(40, len(text) // 4), logprob, finished))


def test_good_texts_stay():
    text, rule = verdict(GOOD)
    assert (rule, '"Take this," said' in text) == ("", True)
    assert verdict(CODE, "code") == (CODE, "")


def test_unfinished_prose_is_cut_at_a_sentence():
    assert verdict(GOOD + " And then the", finished=False) == verdict(GOOD)
    assert verdict("Well. " + GOOD.replace(".", ","), finished=False)[1] == "too little left after the cut"
    assert verdict(CODE, "code", finished=False)[1] == "code not finished"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda t: "A fox ran.", "under 40 tokens or 28 words"),
        (lambda t: t + " caf\u00e9 \u4e2d.", "other non-ASCII characters"),
        (lambda t: t + " As an AI, I like it.", "speaks as an AI, refuses, or holds a link"),
        (lambda t: t + " " + t[:55], "repetition"),
        (lambda t: t + " He was very very very glad.", "repetition"),
        (lambda t: t + ' "Goodbye.', "unbalanced quotation marks"),
        (lambda t: t + " They found a gun.", "word list"),
        (lambda t: t + " Signed, [Your Name].", "placeholder"),
        (lambda t: t + " And then the", "no sentence end"),
        (lambda t: t + " ``` x ```.", "code in prose"),
        (lambda t: t + " This story is meant to teach children.", "comments on its own answer"),
    ],
)
def test_prose_rules(change, rule):
    assert verdict(change(GOOD))[1] == rule


def test_few_distinct_words():
    words = (
        "the cat saw a dog and the dog saw the cat so the dog and a cat met the hen then the hen saw a dog. "
    )
    assert verdict(words + "Cats met hens, dogs met cats, a hen saw the cat.")[1] in (
        "few distinct words",
        "repetition",
    )


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda t: t.replace("return 2 *", "return 2 * *"), "code does not parse"),
        (lambda t: t.replace('    """Twice a number."""\n', ""), "no docstring, function or closed fence"),
        (lambda t: t[:-29], "no docstring, function or closed fence"),
        (lambda t: t + " x" * 160, "very long line"),
        (lambda t: t.replace("Call", "    print(double(4))\n" * 5 + "Call"), "repetition"),
    ],
)
def test_code_rules(change, rule):
    changed = change(CODE)
    assert verdict(changed, "code")[1] == rule


def test_unlikely_text_is_dropped():
    assert verdict(GOOD, logprob=-1.8)[1] == "low mean log-probability"
    assert verdict(CODE, "code", logprob=-0.9)[1] == "low mean log-probability"
