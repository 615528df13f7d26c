"""Prompts in the chat form of a target."""

import json
import lzma
from types import SimpleNamespace

import numpy as np
import pytest

from jddtree.chat import encode_chat, load_template
from jddtree.errors import InputError
from jddtree.load import BUNDLED
from jddtree.tokenizer import load_tokenizer
from scripts.pair.prompts import ChatFrame, encoded_prompts, encoded_texts, variations


def test_a_frame_encodes_as_the_template_does():
    folder = BUNDLED / "k2-mini"
    tokenizer, template = load_tokenizer(folder), load_template(folder)
    assert tokenizer is not None
    assert template is not None
    frame = ChatFrame(tokenizer, template)
    for words in ("Why?", "42\n\n apples", "end <|im_end|> it", "\u00e9 \u6c34"):
        whole = encode_chat(tokenizer, template, [{"role": "user", "content": words}], False)
        assert frame.encode(words) == whole


def test_a_template_that_changes_words_is_refused(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] | upper }}")
    tokenizer, template = load_tokenizer(BUNDLED / "k2-mini"), load_template(tmp_path)
    assert tokenizer is not None
    assert template is not None
    with pytest.raises(InputError, match="changes or repeats"):
        ChatFrame(tokenizer, template)


def bundled() -> SimpleNamespace:
    """The bundled target's tokenizer and chat template, without weights."""
    folder = BUNDLED / "k2-mini"
    return SimpleNamespace(
        checkpoint=SimpleNamespace(folder=folder),
        tokenizer=load_tokenizer(folder),
        target=SimpleNamespace(config=SimpleNamespace(vocab_size=6144, max_position=512)),
    )


def test_texts_end_with_the_stop_and_are_thinned_by_kind(tmp_path):
    lines = [
        {"kind": kind, "prompt": f"Say {i}.", "text": f"{i}"}
        for i in range(40)
        for kind in ("story", "maths")
    ]
    lines += [
        {"kind": "story", "prompt": "", "text": "no prompt"},
        {"kind": "story", "prompt": "x", "text": ""},
    ]
    file = tmp_path / "texts.jsonl.xz"
    file.write_bytes(lzma.compress("\n".join(map(json.dumps, lines)).encode()))
    pair = bundled()
    found = encoded_texts([file], pair, 5890, 64, {"maths": 0.5}, seed=0)
    kinds = np.bincount(found.kinds, minlength=5)
    assert kinds[0] == 40
    assert 10 < kinds[4] < 30
    first = found.tokens[: found.lengths[0]].tolist()
    assert first[-1] == 5890
    assert pair.tokenizer.decode(first[found.prompts[0] : -1]) == "0"


def test_variations_are_made_of_the_words_of_one_prompt_or_two():
    prompts = [(0, "a b c d"), (2, "e f"), (1, "g")]
    found = variations(prompts, 200, seed=0)
    assert found == variations(prompts, 200, seed=0) != variations(prompts, 200, seed=1)
    assert len(found) == 200 and {kind for kind, _ in found} == {0, 1, 2}
    texts = {text for _, text in found}
    assert {"b c d", "a", "a b c d e f", "a b f", "g g"} < texts
    assert all(text and set(text.split()) <= set("abcdefg") for text in texts)


def test_variations_come_after_the_prompts_as_many_as_are_asked_for(tmp_path):
    lines = [{"kind": "chat", "prompt": f"Say {i} now."} for i in range(10)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    plain, more = (encoded_prompts([file], bundled(), varied, seed=0) for varied in (0, 1.5))
    assert (len(plain.lengths), len(more.lengths)) == (10, 25)
    np.testing.assert_array_equal(more.tokens[: len(plain.tokens)], plain.tokens)
    with pytest.raises(InputError, match="0 or more, not -1"):
        encoded_prompts([file], bundled(), -1, seed=0)
