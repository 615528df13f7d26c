"""Prompts in the chat form of a target."""

import pytest

from jddtree.chat import encode_chat, load_template
from jddtree.errors import InputError
from jddtree.load import BUNDLED
from jddtree.tokenizer import load_tokenizer
from scripts.pair.prompts import ChatFrame


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
