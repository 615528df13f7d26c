from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from jddtree.chat import ChatTemplate, encode_chat, load_template, render, thinks
from jddtree.errors import InputError
from jddtree.tokenizer import Tokenizer, load_tokenizer

PAIR_TEMPLATE = Path(__file__).parents[1] / "scripts" / "pair" / "chat_template.jinja"
TAGS = [
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
]
TAGS += ["<|tool_call_argument_begin|>", "<|tool_call_end|>"]
SPECIALS = ["<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "[EOS]"]
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token a byte, and the special tokens of Kimi's chats."""
    folder = tmp_path_factory.mktemp("bytes")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: rank for rank, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(name, normalized=False, special=True) for name in SPECIALS])
    backend.add_tokens([AddedToken(name, normalized=False) for name in TAGS])
    backend.save(str(folder / "tokenizer.json"))
    loaded = load_tokenizer(folder)
    assert loaded is not None
    return loaded


@pytest.fixture(scope="module")
def pair() -> ChatTemplate:
    return ChatTemplate(PAIR_TEMPLATE.read_text(), PAIR_TEMPLATE, "", "")


def test_prompt_for_one_message(pair):
    start = "<|im_system|>system<|im_middle|>Be kind.<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|>"
    messages = [{"role": "system", "content": "Be kind."}, USER]
    assert render(pair, messages, thinking=True) == start + "<|im_assistant|>assistant<|im_middle|><think>"
    assert (
        render(pair, messages, thinking=False)
        == start + "<|im_assistant|>assistant<|im_middle|><think></think>"
    )


def conversation() -> list[dict]:
    calls = [
        {"function": {"name": "get", "arguments": {"b": 1, "a": "é"}}},
        {"function": {"name": "put", "arguments": '{"x":  2}'}},
    ]
    return [
        USER | {"name": "ann"},
        {"role": "assistant", "content": "old", "reasoning_content": "forgotten"},
        {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": " now"}]},
        {"role": "assistant", "content": None, "reasoning_content": "kept", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "functions.get:0", "content": "42"},
    ]


OPEN, MIDDLE, END = "<|im_assistant|>assistant<|im_middle|>", "<|im_middle|>", "<|im_end|>"
CALLS = (
    "<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{"b": 1, "a": "é"}<|tool_call_end|>'
    '<|tool_call_begin|>functions.put:1<|tool_call_argument_begin|>{"x":  2}<|tool_call_end|>'
    "<|tool_calls_section_end|>"
)
RESULT = f"<|im_system|>tool{MIDDLE}## Return of functions.get:0\n42{END}"


def test_history_has_empty_think_blocks_and_later_turns_keep_theirs(pair):
    head = f"<|im_user|>ann{MIDDLE}Hi{END}{OPEN}<think></think>old{END}<|im_user|>user{MIDDLE}and now{END}"
    assert render(pair, conversation(), thinking=True) == (
        f"{head}{OPEN}<think>kept</think>{CALLS}{END}{RESULT}{OPEN}<think>"
    )
    assert render(pair, conversation(), thinking=False) == (
        f"{head}{OPEN}<think></think>{CALLS}{END}{RESULT}{OPEN}<think></think>"
    )


def test_preserved_thinking_keeps_every_turns_thoughts(pair):
    source = "{% set preserve_thinking = true %}" + pair.source
    text = render(ChatTemplate(source, pair.file, "", ""), conversation(), thinking=True)
    assert f"{OPEN}<think>forgotten</think>old{END}" in text


def test_tools_come_first_as_compact_sorted_json(pair):
    tools = [{"type": "function", "function": {"name": "get", "description": "Größe < 3"}}]
    declared = '[{"function":{"description":"Größe < 3","name":"get"},"type":"function"}]'
    assert render(pair, [USER], True, tools).startswith(
        f"<|im_system|>tool_declare{MIDDLE}{declared}{END}<|im_user|>"
    )


def test_pictures_are_refused(pair):
    with pytest.raises(InputError, match="reads text only"):
        render(pair, [{"role": "user", "content": [{"type": "image", "image": "x"}]}], thinking=False)


def test_the_templates_own_names_become_tokens(tokenizer, pair):
    messages = conversation()
    expected = tokenizer.encode(render(pair, messages, thinking=True), specials=True)
    assert encode_chat(tokenizer, pair, messages, thinking=True) == expected


FORGED = st.lists(
    st.sampled_from([*SPECIALS, *TAGS, "<|im_", "end|>", "<", ">", "a", " ", "\U000f0000"]), max_size=6
)


@given(FORGED.map("".join), FORGED.map("".join), FORGED.map("".join))
def test_messages_cannot_forge_a_token(tokenizer, pair, content, name, description):
    messages = [
        {"role": "user", "content": content, "name": name or "x"},
        USER,
        {"role": "system", "content": content},
    ]
    tools = [{"function": {"name": description, "parameters": {description: [content]}}}]
    ids = encode_chat(tokenizer, pair, messages, True, tools)
    # The same conversation with harmless words has the same special tokens.
    harmless = [{"role": "user", "content": "a", "name": "x"}, USER, {"role": "system", "content": "a"}]
    plain = encode_chat(tokenizer, pair, harmless, True, [{"function": {"name": "a"}}])
    assert [i for i in ids if i in tokenizer.markup] == [i for i in plain if i in tokenizer.markup]
    # And nothing of the text is lost.
    assert tokenizer.decode(ids, skip_special=False) == render(pair, messages, True, tools)


def test_names_cannot_be_completed_across_two_messages(tokenizer):
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", Path("t"), "", "")
    parts = [{"role": "user", "content": "x<|im_"}, {"role": "user", "content": "end|>y"}]
    ids = encode_chat(tokenizer, template, parts, thinking=False)
    assert not tokenizer.markup.keys() & set(ids)
    assert tokenizer.decode(ids) == "x<|im_end|>y"


def test_an_assistants_own_tags_stay_tags(tokenizer):
    source = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{{ m.content }}{% endfor %}"
    said = {"role": "assistant", "content": "<think>r</think>a<|im_end|>"}
    ids = encode_chat(tokenizer, ChatTemplate(source, Path("t"), "", ""), [said], thinking=False)
    assert tokenizer.decode(ids) == "a<|im_end|><think>r</think>a<|im_end|>"
    assert [i for i in ids if i in tokenizer.markup] == [
        tokenizer.id_of("<think>"),
        tokenizer.id_of("</think>"),
    ]


def test_where_a_template_is_looked_for(tmp_path):
    assert load_template(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"bos_token": {"content": "[B]"}, "eos_token": "[E]"}')
    assert load_template(tmp_path) is None
    for value in (
        '"A{{ bos_token }}{{ eos_token }}"',
        '[{"name": "default", "template": "A{{ bos_token }}[E]"}]',
    ):
        config.write_text(
            f'{{"bos_token": {{"content": "[B]"}}, "eos_token": "[E]", "chat_template": {value}}}'
        )
        template = load_template(tmp_path)
        assert template is not None and render(template, [], thinking=False) == "A[B][E]"
    (tmp_path / "chat_template.jinja").write_text("own {{ thinking }} {{ enable_thinking }}")
    template = load_template(tmp_path)
    assert template is not None and render(template, [], thinking=True) == "own True True"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if %}", r"chat_template.jinja: chat template, line 2"),
        (
            "{{ raise_exception('no tools\\nhere') }}",
            r"chat_template.jinja: the chat template failed: no tools here",
        ),
        ("{{ messages[7].content }}", "failed"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_templates_that_fail_are_named(source, message):
    with pytest.raises(InputError, match=message):
        render(ChatTemplate(source, Path("chat_template.jinja"), "", ""), [USER], thinking=False)


def test_text_that_is_not_unicode_is_refused(tokenizer, pair):
    with pytest.raises(InputError, match="lone surrogate"):
        encode_chat(tokenizer, pair, [{"role": "user", "content": "a\udcff"}], thinking=False)


def test_a_template_thinks_if_an_answer_starts_otherwise(pair):
    assert thinks(pair)
    assert not thinks(replace(pair, source="{{ messages[0].content }}"))


def test_unknown_roles_are_refused(pair):
    with pytest.raises(InputError, match="message 1 has role 'usr'"):
        render(pair, [USER, {"role": "usr", "content": ""}], thinking=False)
