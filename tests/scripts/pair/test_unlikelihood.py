"""Which tokens count as repeats, and which prompts are drawn."""

from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scripts.pair.documents import KINDS, ChatForm, Documents, Special, pack
from scripts.pair.target import unlikelihood
from scripts.pair.unlikelihood import GRAM, Prompts, repeats

SPECIAL = Special(384)
ids = st.lists(st.integers(0, 2), min_size=2, max_size=20)
texts = st.lists(st.tuples(ids, st.integers(1, 3)), min_size=1, max_size=6)


def slow_repeats(tokens: list[int], answer: list[bool]) -> list[bool]:
    """One document: a token is marked if the answer held the gram that it completes before."""
    begin = answer.index(True) if True in answer else len(answer)
    seen, marks = set(), [False] * len(tokens)
    for end in range(begin + GRAM, len(tokens) + 1):
        gram = tuple(tokens[end - GRAM : end])
        marks[end - 1] = gram in seen
        seen.add(gram)
    return marks


@given(texts)
def test_marks_are_those_of_a_slow_search(made):
    documents = Documents.of(((text, min(prompt, len(text) - 1), 0) for text, prompt in made), 20)
    rows = pack(documents, 24, SPECIAL, seed=0)
    marks = repeats(rows)
    for tokens, positions, answer, found in zip(rows.tokens, rows.positions, rows.answer, marks, strict=True):
        starts = [*np.flatnonzero(positions == 0), len(tokens)]
        expected = []
        for begin, end in pairwise(starts):
            expected += slow_repeats(tokens[begin:end].tolist(), answer[begin:end].tolist())
        assert found.tolist() == expected


def test_unlikelihood_is_minus_the_log_of_what_the_others_have():
    logits = jnp.array([[[1.0, 2.0, -1.0], [0.0, 60.0, 0.0]]])
    values = unlikelihood(logits, jnp.array([[1, 1]]))
    np.testing.assert_allclose(values[0, 0], -np.log(1 - jax.nn.softmax(logits[0, 0])[1]), rtol=1e-5)
    np.testing.assert_allclose(values[0, 1], 60 - np.log(2), rtol=1e-5)  # 1 - p is 0 in float32
    slope = jax.grad(lambda z: unlikelihood(z, jnp.array([[1, 1]])).sum())(logits)
    np.testing.assert_allclose(slope[0, 1], [-0.5, 1.0, -0.5], atol=1e-5)


def test_prompts_keep_the_chat_form_and_their_length():
    form = cast(ChatForm, SimpleNamespace(special=SPECIAL, before=[1, 2], between=[3]))
    bodies = {kind: [10 * i + j for j in range(4)] for i, kind in enumerate(KINDS, start=1)}
    documents = Documents.of(
        (([1, 2, *body, 3, 99, 98], 7, KINDS.index(kind)) for kind, body in bodies.items()), 12
    )
    prompts, rng = Prompts(documents, form, 8), np.random.default_rng(0)
    assert list(prompts.by_kind) == ["story", "explain", "chat"]
    assert prompts.draw("chat", False, rng) == [1, 2, *bodies["chat"], 3]
    drawn = [prompts.draw("story", True, rng) for _ in range(40)]
    assert all(ids[:2] == [1, 2] and ids[-1] == 3 and 4 <= len(ids) <= 8 for ids in drawn)
    assert len({tuple(ids) for ids in drawn}) > 8
