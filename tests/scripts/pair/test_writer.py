"""The text writer: plain text as the decoder writes it, and the rules of a style."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree.errors import InputError
from jddtree.models.target import Target
from jddtree.state import Method
from scripts.pair import writer
from scripts.pair.writer import PLAIN, Style, Words, repeats, write_texts
from tests import tiny

PROMPTS = [[5, 6, 7], [9], [11, 3, 8, 20, 4, 4], [2, 2]]
SLOTS = 24
EVERY = Words(np.ones(50, bool), np.ones(50, bool))


@pytest.fixture(scope="module")
def target() -> Target:
    """One layer: quick to compile."""
    return tiny.target(tiny.QWEN3 | {"num_hidden_layers": 1})


def texts(target: Target, prompts=PROMPTS, *, style=PLAIN, temperature=0.0, stop_ids=(), rows=3, words=EVERY):
    found = write_texts(
        target,
        prompts,
        style=style,
        temperatures=[temperature] * len(prompts),
        slots=SLOTS,
        rows=rows,
        stop_ids=stop_ids,
        seed=0,
        say=lambda line: None,
        words=words,
    )
    return sorted(found, key=lambda text: text.index)


@pytest.mark.parametrize("raw", [tiny.QWEN3, tiny.KIMI], ids=["qwen3", "kimi"])
def test_greedy_text_is_the_decoders(raw, monkeypatch):
    monkeypatch.setattr(writer, "WINDOW", 15)  # the cache grows once
    target = tiny.target(raw)
    plain = tiny.decoder(target, None, Method.plain(), rows=4)
    wanted = [row.output_ids for row in tiny.decode(plain, PROMPTS, max_new=SLOTS)]
    stop = next(token for i, token in enumerate(wanted[0]) if i > 3 and token not in wanted[0][:i])
    opening = tuple(wanted[3][:2])
    styles = [PLAIN, PLAIN, PLAIN, Style(opening=opening)]
    for text, prompt, whole in zip(
        texts(target, style=styles, stop_ids=[stop]), PROMPTS, wanted, strict=True
    ):
        ids = whole[: SLOTS - len(prompt)]
        assert text.stop == (stop if stop in ids else None)
        assert text.ids == (ids[: ids.index(stop)] if stop in ids else ids)
        logprobs = jax.nn.log_softmax(tiny.forward(target, np.array([*prompt, *text.ids])))
        each = [float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(text.ids)]
        sampled = each[len(opening) :] if prompt == PROMPTS[3] else each
        assert text.logprob == pytest.approx(np.mean(sampled), abs=1e-4)


def test_min_p_keeps_likely_tokens_alone(target):
    prompts = [[7, n] for n in range(16)]
    for text in texts(target, prompts, style=Style(min_p=0.5), temperature=2.0, rows=16):
        logits = tiny.forward(target, np.array([*prompts[text.index], *text.ids]))[1:-1] / 2.0
        ratios = [row[token] - row.max() for row, token in zip(logits, text.ids, strict=True)]
        assert min(ratios) >= np.log(0.5) - 1e-4
        assert min(ratios) < 0  # sampled all the same


def test_no_ngram_comes_twice_unless_its_last_token_is_spared(target):
    prompts = [[n] for n in range(2, 40)]
    words = Words(EVERY.content, np.arange(50) % 2 == 0)
    again = []
    for text in texts(target, prompts, style=Style(ngram=2), temperature=0.2, rows=38, words=words):
        pairs = list(zip(text.ids, text.ids[1:], strict=False))
        again += [pair[-1] for i, pair in enumerate(pairs) if pair in pairs[:i]]
    assert len(again) > 10
    assert all(token % 2 for token in again)


def test_repeats_is_what_a_search_finds():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 3, (6, 20)).astype(np.int32)
    begin, ngram = np.array([0, 2, 4, 0, 9, 3]), np.array([1, 2, 3, 0, 2, 4])
    for at in (3, 9, 18):
        found = np.asarray(repeats(jnp.asarray(tokens), jnp.int32(at), begin, ngram, 4))
        for row in range(6):
            n, text = ngram[row], tokens[row, : at + 1].tolist()
            tail = text[len(text) - (n - 1) :] if n > 1 else []
            places = {
                q
                for q in range(at + 1)
                if n and q - n + 1 >= begin[row] and text[q - n + 1 : q] == tail and len(text) - n + 1 >= 0
            }
            assert set(np.flatnonzero(found[row])) == places


def test_a_penalty_is_taken_twice_at_most_and_from_content_words_alone():
    vocab = 4
    rows = writer._Rows(
        begin=np.zeros(1, np.int32),
        given=np.zeros(1, np.int32),
        rise=np.full(1, 99, np.int32),
        temperature=np.zeros(1, np.float32),
        min_p=np.zeros(1, np.float32),
        penalty=np.full(1, 0.6, np.float32),
        ngram=np.zeros(1, np.int32),
        stop=np.zeros(vocab, bool),
        content=np.ones(vocab, bool),
        starts=np.ones(vocab, bool),
        key=jax.random.key(0),
    )
    rules = writer._Rules(True, 0, False, False)

    def chosen(logits, used) -> int:
        used = jnp.array([used], jnp.int8)
        tokens = jnp.zeros((1, 3), jnp.int32)
        return int(writer.choose(jnp.array([logits]), tokens, used, jnp.int32(0), rows, rules)[0])

    assert chosen([1.0, 0.5, 0.0, 0.0], [0, 0, 0, 0]) == 0
    assert chosen([1.0, 0.5, 0.0, 0.0], [1, 0, 0, 0]) == 1
    assert chosen([1.0, 0.5, 0.0, 0.0], [1, 1, 0, 0]) == 0
    assert chosen([1.3, 0.0, 0.0, 0.0], [2, 0, 0, 0]) == 0


def test_used_content_words_are_avoided(target):
    words = Words(np.arange(50) % 2 == 1, EVERY.starts)
    again = []
    for text in texts(target, [[n] for n in range(2, 40)], style=Style(penalty=1000.0), rows=38, words=words):
        again += [token for i, token in enumerate(text.ids) if token in text.ids[:i]]
    assert len(again) > 10
    assert not any(token % 2 for token in again)


def test_the_end_is_raised_in_time(target, monkeypatch):
    monkeypatch.setattr(writer, "RAISE", 20.0)
    monkeypatch.setattr(writer, "MOST_RAISED", 1000.0)
    for text in texts(target, style=Style(end_after=(4, 6)), stop_ids=[49]):
        assert text.stop == 49
        assert 1 <= len(text.ids) <= 12


def test_what_does_not_fit_is_refused(target):
    with pytest.raises(InputError, match="prompt 0 has 24 tokens"):
        texts(target, [[1] * SLOTS])
    with pytest.raises(InputError, match="prompt 0 is empty"):
        texts(target, [[]])
    with pytest.raises(ValueError, match="needs words"):
        texts(target, style=Style(ngram=3), words=None)
