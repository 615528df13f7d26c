"""Documents on disk and in rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jddtree.errors import InputError
from scripts.pair.documents import Documents, Special, pack

SPECIAL = Special(384)
texts = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=40)


def documents_of(sizes: list[tuple[int, int]], longest: int = 12) -> Documents:
    """Documents with different ids, so that each can be told from the others."""
    made, at = [], 0
    for length, prompt in sizes:
        made.append((list(range(at, at + length)), min(prompt, length - 1), 0))
        at += length
    return Documents.of(iter(made), longest)


@given(texts)
def test_packing_loses_and_cuts_nothing(sizes):
    documents = documents_of(sizes)
    rows = pack(documents, 12, SPECIAL, seed=0)
    found = {}
    for tokens, positions, answer in zip(rows.tokens, rows.positions, rows.answer, strict=True):
        text = tokens[tokens != SPECIAL.pad]
        starts = np.flatnonzero(positions[: len(text)] == 0)
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            np.testing.assert_array_equal(positions[start:end], np.arange(end - start))
            found[int(tokens[start])] = (tokens[start:end].tolist(), answer[start:end].tolist())
        assert not answer[len(text) :].any()
    for start, length, prompt in zip(documents.starts(), documents.lengths, documents.prompts, strict=True):
        expected = list(range(start, start + length)), [i >= prompt for i in range(length)]
        assert found.pop(int(start)) == expected
    assert not found


def test_saved_documents_come_back(tmp_path):
    documents = documents_of([(5, 2), (9, 0), (1, 0)])
    documents.save(tmp_path / "x.npz.xz")
    again = Documents.load(tmp_path / "x.npz.xz")
    for name in ("tokens", "lengths", "prompts", "kinds"):
        np.testing.assert_array_equal(getattr(again, name), getattr(documents, name))
    twice = Documents.load_part([tmp_path, tmp_path], "x")
    np.testing.assert_array_equal(twice.tokens, np.tile(documents.tokens, 2))
    np.testing.assert_array_equal(twice.prompts, np.tile(documents.prompts, 2))
    with pytest.raises(InputError, match="missing"):
        Documents.load(tmp_path / "missing")


def test_long_plain_text_is_cut_and_long_chats_are_dropped():
    documents = Documents.of(iter([(list(range(25)), 0, 5), (list(range(25)), 3, 0)]), 10)
    assert documents.lengths.tolist() == [10, 10, 5]
    assert documents.kinds.tolist() == [5, 5, 5]


def test_an_epoch_shows_every_row_once():
    rows = pack(documents_of([(12, 1)] * 6), 12, SPECIAL, seed=0)
    batches = rows.batches(2, seed=3)
    epochs = [np.concatenate([next(batches)[0] for _ in range(3)]) for _ in range(2)]
    for epoch in epochs:
        assert sorted(epoch[:, 0].tolist()) == list(range(0, 72, 12))
    assert epochs[0].tolist() != epochs[1].tolist()
    with pytest.raises(InputError, match="too few"):
        next(rows.batches(7, seed=0))
