"""Prompts from text files, in the chat form of a target."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jddtree.chat import ChatTemplate, load_template, render
from jddtree.errors import InputError
from jddtree.load import Pair
from jddtree.tokenizer import Tokenizer
from scripts.pair.documents import KINDS, Documents

HOLE = "\ue000words\ue000"


class ChatFrame:
    """Encodes a user's words as `jddtree.chat.encode_chat` does, thinking off; the template runs once, since
    it is slow. The words may not begin or end with a space.

    Raises InputError for a template that changes or repeats what the user says.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        text = render(template, [{"role": "user", "content": HOLE}], False)
        if text.count(HOLE) != 1:
            raise InputError("the chat template changes or repeats the user's words")
        at = text.index(HOLE)
        spans = tokenizer.special_spans(text)
        begin = max((end for _, _, end in spans if end <= at), default=0)
        end = min((start for _, start, _ in spans if start > at), default=len(text))
        self._tokenizer = tokenizer
        self._before = tokenizer.encode(text[:begin], specials=True)
        self._around = text[begin:end].split(HOLE)
        self._after = tokenizer.encode(text[end:], specials=True)

    def encode(self, words: str) -> list[int]:
        """Ids up to the first token of the answer."""
        return [
            *self._before,
            *self._tokenizer.encode(words.join(self._around), specials=False),
            *self._after,
        ]


def encoded_prompts(files: Sequence[Path], pair: Pair) -> Documents:
    """Documents that are prompts alone, of the files' lines {"kind", "prompt", ...}; empty prompts are left
    out.

    Raises InputError for a line of another form, and for a target without tokenizer or chat template.
    """
    template = load_template(pair.checkpoint.folder)
    if pair.tokenizer is None or template is None:
        raise InputError(f"{pair.checkpoint.folder} has no tokenizer or no chat template")
    frame = ChatFrame(pair.tokenizer, template)

    def encoded() -> Iterator[tuple[list[int], int, int]]:
        for kind, prompt in _records(files):
            ids = frame.encode(prompt)
            yield ids, len(ids), kind

    wide = pair.target.config.vocab_size > 1 << 16
    return Documents.of(encoded(), pair.target.config.max_position, np.uint32 if wide else np.uint16)


def _records(files: Sequence[Path]) -> Iterator[tuple[int, str]]:
    """(kind's index, prompt) of every line."""
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").rstrip("\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read: {error}") from error
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                kind, prompt = KINDS.index(record["kind"]), record["prompt"].strip()
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(
                    f'{file}, line {number}: not an object with "prompt" and a "kind" of {", ".join(KINDS)}'
                ) from error
            if prompt:
                yield kind, prompt
