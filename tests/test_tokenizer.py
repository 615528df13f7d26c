import base64
import json
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from jddtree.errors import InputError
from jddtree.tokenizer import SPECIAL_SLOTS, SPLIT_PATTERN, TextStream, Tokenizer, load_tokenizer, stop_ids

MULTI = [b"he", b"ll", b"hell", b"hello", "한".encode(), "한".encode()[:2], "👍".encode()[1:], b"  ", b"im"]
NAMES = {1: "<|im_end|>", 7: "<think>", 8: "</think>"}


def write_toy(folder: Path) -> int:
    """A small folder of Kimi's layout; the number of ranks."""
    tokens = [bytes([byte]) for byte in reversed(range(256))] + MULTI
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    entries = {
        str(len(tokens) + slot): {"content": name, "special": name.startswith("<|")}
        for slot, name in NAMES.items()
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": entries}))
    return len(tokens)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


def test_tiktoken_files_give_the_golden_ids(golden_folders):
    found = [path for folder in golden_folders for path in folder.glob("kimi/tokenizer*/cases.json")]
    assert found
    for file in found:
        tokenizer, golden = load_tokenizer(file.parent), json.loads(file.read_text(encoding="utf-8"))
        assert tokenizer is not None
        assert golden["pattern"] == SPLIT_PATTERN
        assert (
            tokenizer.backend.get_vocab_size() == golden["n_vocab"] == golden["n_base_tokens"] + SPECIAL_SLOTS
        )
        for case in golden["cases"]:
            assert tokenizer.encode(case["text"], specials=True) == case["ids"], case["text"]
            assert tokenizer.encode(case["text"], specials=False) == case["ids_ordinary"], case["text"]


@given(
    st.text()
    | st.lists(st.sampled_from(["hello", "<|im_end|>", "<think>", "한", "👍", " ", "\n"])).map("".join)
)
def test_text_survives_encoding_and_holds_no_special_token_unless_asked(toy, text):
    ids = toy.encode(text, specials=False)
    assert toy.decode(ids) == text
    assert not toy.markup.keys() & set(ids)
    assert toy.decode(toy.encode(text, specials=True), skip_special=False) == text


def test_special_slots(toy):
    first = toy.id_of("<|im_end|>") - 1
    assert toy.encode("<think>hello<|im_end|>", specials=True) == [first + 7, toy.id_of("hello"), first + 1]
    assert toy.decode([first + 7, first + 8, first + 1]) == "<think></think>"
    # Slots without a name exist, and so does text for ids that a padded embedding may give.
    assert toy.id_of(f"<|reserved_token_{first + 255}|>") == first + 255
    assert toy.decode([first + 255, 10**6], skip_special=False) == f"<|reserved_token_{first + 255}|>"
    assert toy.id_of("<|no_such|>") is None


@given(st.lists(st.integers(0, 700), max_size=40), st.integers(1, 5), st.booleans())
def test_streamed_pieces_join_to_the_full_text(toy, ids, size, skip):
    stream = TextStream(toy, skip)
    pieces = [stream.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    assert "".join(pieces) + stream.flush() == toy.decode(ids, skip)


@given(st.text(alphabet=st.sampled_from("한국어👍🏽é世a "), max_size=20))
def test_streaming_never_ends_inside_a_character(toy, text):
    stream = TextStream(toy)
    pieces = [stream.push([token]) for token in toy.encode(text, specials=False)]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == text and stream.flush() == ""


def test_an_incomplete_last_character_comes_with_the_flush(toy):
    ids = [*toy.encode("a", specials=False), toy.id_of("\xed")]  # then the first byte of three
    stream = TextStream(toy)
    assert stream.push(ids) == "a"
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


@pytest.mark.parametrize("unit", ["a", " "])
def test_giant_inputs_are_cut(toy, unit):
    def encode(text: str) -> list[int]:
        return toy.plain.encode(text, add_special_tokens=False).ids

    # A run of 25,001 is cut after 25,000; the text around it is not, nor is a shorter run.
    text = "\n" + "he" * 10 + "\n" + unit * 60_001 + "\t"
    head = text.index(unit * 60_001) if unit == "a" else text.rindex("\n")
    cuts = [0, *range(head + 25_000, len(text) - 1, 25_000), len(text)]
    expected = [token for start, end in pairwise(cuts) for token in encode(text[start:end])]
    assert len(cuts) == 4
    assert toy.encode(text, specials=False) == expected
    # Pieces of 400,000 characters: the word across the border is cut in two.
    assert toy.encode("he " * 133_333 + "hello", specials=False)[-4:] == encode("h") + encode("ello")


def test_tokenizer_json_is_read_as_it_is(tmp_path):
    vocabulary = {letter: index for index, letter in enumerate(["[UNK]", *"abc<|>/", "ab"])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("<|a|>", special=True)])
    backend.post_processor = processors.TemplateProcessing(single="<|a|> $A", special_tokens=[("<|a|>", 9)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tiktoken.model").write_text("not read, since tokenizer.json is there")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode("abc<|a|>", specials=True) == [8, 3, 9]
    assert tokenizer.encode("abc<|a|>", specials=False) == [8, 3, 4, 5, 1, 5, 6]
    assert tokenizer.decode([8, 3, 9]) == "abc"


def test_a_folder_without_tokenizer_files_has_none(tmp_path):
    assert load_tokenizer(tmp_path) is None


def _replace(file: str, old: str, new: str):
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_replace("tiktoken.model", "/w== 0\n", "/w==\n"), r"tiktoken.model, line 1: expected"),
        (_replace("tiktoken.model", "/g== 1\n", "/g= 1\n"), r"tiktoken.model, line 2: expected"),
        (_replace("tiktoken.model", "/g== 1\n", "/g== 0\n"), r"tiktoken.model, line 2: rank 0 is taken"),
        (_replace("tiktoken.model", "/g== 1\n", "/w== 1\n"), r"tiktoken.model, line 2: the token of line 1"),
        (_replace("tiktoken.model", "/g== 1\n", ""), r"tiktoken.model: rank 1 is missing"),
        (_replace("tiktoken.model", "/g== 1\n", "enp6 1\n"), r"no token for the single byte 0xfe"),
        (_replace("tokenizer_config.json", '"added_tokens_decoder"', '"other"'), r"no added_tokens_decoder"),
        (_replace("tokenizer_config.json", '"272"', '"12"'), r"'<think>' has id 12, but the first 265 ids"),
        (_replace("tokenizer_config.json", '"272"', '"x"'), r"entry 'x'"),
        (_replace("tokenizer_config.json", '"<think>"', '"<|im_end|>"'), r"'<\|im_end\|>' is also"),
        (_replace("tokenizer_config.json", "{", "["), r"tokenizer_config.json .*line 1"),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), r"needs tokenizer_config.json"),
        (
            lambda folder: (folder / "tokenizer.json").write_text("{}"),
            r"tokenizer.json: not a tokenizer file",
        ),
    ],
)
def test_malformed_files_are_named(tmp_path, damage, message):
    write_toy(tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_text_that_is_not_unicode_is_refused(toy):
    with pytest.raises(InputError, match="lone surrogate"):
        toy.encode("a\udcff", specials=True)


def test_stop_ids_come_from_every_source_once(toy):
    end = toy.id_of("<|im_end|>")
    assert stop_ids({"eos_token_id": 7}, None, None) == [7]
    assert stop_ids({}, None, None) == []
    nested = {"eos_token_id": 7, "text_config": {"eos_token_id": [8, 7]}}
    assert stop_ids(nested, {"eos_token_id": [9, end]}, toy) == [7, 8, 9, end]
    assert stop_ids({"eos_token_id": None}, {}, toy) == [end]
    for wrong in ("7", [7, "8"], True, -1, {"a": 1}):
        with pytest.raises(InputError, match=r"generation_config\.json: eos_token_id"):
            stop_ids({}, {"eos_token_id": wrong}, None)
