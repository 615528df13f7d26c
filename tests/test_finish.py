"""Where a text ends, from reports made by hand: what is kept, counted, scored and shown."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jddtree.errors import InputError
from jddtree.finish import Generation, Row
from jddtree.state import CANCELLED, FAILED, LENGTH, RUNNING, STOP, Report
from jddtree.tokenizer import Tokenizer, load_tokenizer
from tests import tiny
from tests.oracles.stop_strings import cut

# Whole words, single letters, and characters in parts.
TOKENS = [b"ab", b"bc", b"cab", b"is", b" a", b"a", b"b", b"c", b",", b" ", b"i", b"s"]
TOKENS += [
    "한".encode()[:1],
    "한".encode()[1:],
    "👍".encode()[:2],
    "👍".encode()[2:],
    b" \xed",
    "b한".encode(),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tokenizer(folder, TOKENS)
    loaded = load_tokenizer(folder)
    assert loaded is not None
    return loaded


def ids_of(*tokens: str | bytes) -> list[int]:
    return [TOKENS.index(token.encode() if isinstance(token, str) else token) for token in tokens]


def report(tokens: Sequence[int], kept: int | None = None, reason: int = RUNNING) -> Report:
    """A round that accepted all ``tokens`` on a spine and kept the first few, in row 1 of two."""
    count = len(tokens)

    def rows(values: Sequence, kind=jnp.int32):
        own = jnp.array(values, kind)
        return jnp.stack([jnp.zeros_like(own), own])

    places = list(range(count))
    return jax.device_get(
        Report(
            accepted=jnp.array([0, count], jnp.int32),
            kept=jnp.array([0, count if kept is None else kept], jnp.int32),
            reason=jnp.array([RUNNING, reason], jnp.int32),
            tokens=rows(tokens),
            margins=rows([place + 0.5 for place in places], jnp.float32),
            logprobs=rows([-place - 1.0 for place in places], jnp.float32),
            top_ids=rows([[token, 9] for token in tokens]),
            top_logprobs=jnp.full((2, count, 2), -2.0, jnp.float32),
            slots=rows(places),
            tree_tokens=rows([7, *tokens[:-1]]),
            tree_parents=rows([-1, *places[:-1]]),
            tree_depths=rows(places),
            tree_count=jnp.array([0, max(count - 1, 0)], jnp.int32),
            experts=jnp.array([3], jnp.int32),
        )
    )


def row(tokenizer: Tokenizer | None = None, stops: Sequence[str] = ()) -> Row:
    return Row("line 3", 10, tokenizer, stops)


def shown(own: Row, reports: Sequence[Report]) -> Iterator[str | None]:
    """The text after every report."""
    for each in reports:
        own.add(each, 1, in_round=True)
        yield own.result.text


def check_scores(result: Generation) -> None:
    """Every list of one entry a token has as many."""
    lists = (result.margins, result.logprobs, result.top_logprobs)
    assert [len(values) for values in lists] == [len(result.output_ids)] * 3


@pytest.mark.parametrize(
    ("reason", "name"), [(STOP, "stop"), (LENGTH, "length"), (CANCELLED, "cancelled"), (FAILED, "error")]
)
def test_what_the_device_cut_is_neither_counted_nor_scored(reason, name):
    own = row()
    own.add(report([4]), 1, in_round=False)
    own.add(report([1, 2, 3, 4, 5], kept=3, reason=reason), 1, in_round=True)
    result = own.result
    assert (result.output_ids, result.finish_reason, result.text) == ([4, 1, 2, 3], name, None)
    assert result.logprobs == [-1, -1, -2, -3] and result.margins == [0.5, 0.5, 1.5, 2.5]
    assert result.top_logprobs == [[(token, -2.0), (9, -2.0)] for token in (4, 1, 2, 3)]
    # The prefill is no round; a round counts what was accepted, and shows all of its tree.
    assert (result.acceptance_lengths, result.experts) == ([5], [[3]])
    assert result.trace == [
        {
            "tokens": [7, 1, 2, 3, 4],
            "parents": [-1, 0, 1, 2, 3],
            "depths": [0, 1, 2, 3, 4],
            "accepted": [0, 1, 2, 3, 4],
        }
    ]
    assert result.committed_per_round == 5.0
    line = "line 3: the target's logits for position 14 are not finite"
    assert result.error == (line if name == "error" else None)
    before = asdict(result)
    own.add(report([6, 7]), 1, in_round=True)
    assert asdict(result) == before


def test_another_rows_round_adds_nothing():
    own = row()
    own.add(report([1, 2]), 0, in_round=True)
    assert own.result == Generation()
    assert own.result.committed_per_round is None


def test_after_a_stop_string_nothing_is_emitted_counted_or_scored(tokenizer):
    own = row(tokenizer, ["bcca", "zz"])
    first, second = ids_of("ab", "b"), ids_of("c", "cab", "is", "a")
    texts = list(shown(own, [report(first), report(second), report(second), report(first, reason=STOP)]))
    # "b" may be the beginning of the stop string: it is held back.
    assert texts == ["ab", "ab", "ab", "ab"]
    result = own.result
    assert (result.output_ids, result.finish_reason) == (first + second[:2], "stop")
    check_scores(result)
    assert result.acceptance_lengths == [2, 4] and len(result.trace) == len(result.experts) == 2


def test_a_stop_string_right_before_a_bad_logit_or_the_length_wins(tokenizer):
    for reason in (FAILED, LENGTH, STOP):
        own = row(tokenizer, ["cab"])
        own.add(report(ids_of("a", "cab"), reason=reason), 1, in_round=True)
        assert (own.result.text, own.result.finish_reason, own.result.error) == ("a", "stop", None)


@pytest.mark.parametrize(
    ("tokens", "stops", "text"),
    [
        (("is", " a", ","), ["a", "is", ","], ""),
        (("b", "cab"), ["ab", "bca", "cab"], ""),  # "bca" ends first, inside the token
        (("cab", "is"), ["cabis", "b"], "ca"),  # "cabis" begins first but ends later
        (("c", "ab"), ["b", "ab", "cab"], ""),  # they end together: the longest is left out
        (("c", "ab"), ["cab", "ab", "b"], ""),
        (("ab", "ab"), ["ba"], "a"),
        (("a", "a", "b"), ["ab"], "a"),  # the first "a" only looked like the beginning
    ],
)
def test_the_earliest_end_in_the_text_wins(tokenizer, tokens, stops, text):
    own = row(tokenizer, stops)
    own.add(report(ids_of(*tokens)), 1, in_round=True)
    assert (own.result.text, own.result.finish_reason) == (text, "stop")


@pytest.mark.parametrize("name", ["length", "cancelled"])
def test_text_that_was_held_back_comes_when_the_row_ends_otherwise(tokenizer, name):
    own = row(tokenizer, ["bcis"])
    assert list(shown(own, [report(ids_of("a", "bc")), report(ids_of("i"))])) == ["a", "a"]
    if name == "length":
        own.add(report(ids_of("i"), reason=LENGTH), 1, in_round=True)
    else:
        own.finish("cancelled")
    assert own.result.text == ("abcii" if name == "length" else "abci")
    assert own.result.finish_reason == name


def test_a_character_in_parts_is_shown_whole_or_not_at_all(tokenizer):
    tokens = ids_of("a", "한".encode()[:1], "한".encode()[1:], "👍".encode()[:2], "👍".encode()[2:])
    own = row(tokenizer)
    texts = list(shown(own, [report([token]) for token in tokens]))
    assert texts == ["a", "a", "a한", "a한", "a한👍"]
    # A text that ends inside a character says so; a stop string before it still counts.
    cut_off = row(tokenizer)
    assert list(shown(cut_off, [report(tokens[:2], reason=LENGTH)])) == ["a\ufffd"]
    stopped = row(tokenizer, [" "])
    assert list(shown(stopped, [report(ids_of("a", b" \xed"), reason=LENGTH)])) == ["a"]
    assert stopped.result.finish_reason == "stop"


texts = st.lists(st.sampled_from(range(len(TOKENS))), max_size=12)
stop_strings = st.lists(st.text(alphabet="abcis ,한👍", min_size=1, max_size=3), max_size=3)


@given(tokens=texts, stops=stop_strings, sizes=st.lists(st.integers(1, 4), min_size=12, max_size=12))
def test_any_split_of_a_text_ends_where_the_whole_text_would(tokenizer, tokens, stops, sizes):
    own, begin, seen = row(tokenizer, stops), 0, ""
    for size in sizes:
        part = tokens[begin : begin + size]
        begin += len(part)
        if part:
            own.add(report(part, reason=LENGTH if begin == len(tokens) else RUNNING), 1, in_round=True)
            # What was shown once stays.
            assert own.result.text.startswith(seen)
            seen = own.result.text
    result = own.result
    if not tokens:
        assert result.text == ""
        return
    text, end = cut(tokenizer.decode(tokens), stops)
    assert result.text == text
    assert result.finish_reason == ("length" if end is None else "stop")
    check_scores(result)
    # The fewest tokens whose text, once it breaks between characters, holds the stop string.
    ends = [
        count
        for count in range(1, len(tokens) + 1)
        if not tokenizer.decode(tokens[:count]).endswith("\ufffd")
        and cut(tokenizer.decode(tokens[:count]), stops)[1] is not None
    ]
    assert result.output_ids == tokens[: ends[0] if ends else len(tokens)]


def test_stop_strings_that_cannot_be_looked_for_are_refused(tokenizer):
    with pytest.raises(InputError, match="line 3: a stop string is empty"):
        row(tokenizer, ["a", ""])
    with pytest.raises(InputError, match="line 3: stop strings need a tokenizer"):
        row(None, ["a"])
