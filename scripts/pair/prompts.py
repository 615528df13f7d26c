"""Prompts and answers from text files, in the chat form of a target."""

import json
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from jddtree.chat import ChatTemplate, load_template, render
from jddtree.config import TargetConfig
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


def encoded_prompts(files: Sequence[Path], pair: Pair, varied: float, seed: int) -> Documents:
    """Documents that are prompts alone, of the files' lines {"kind", "prompt", ...}; empty prompts are left
    out. ``varied``: so many `variations` for every prompt come after them.

    Raises InputError for a line of another form, and for a target without tokenizer or chat template.
    """
    frame, _ = _frame(pair)
    if not 0 <= varied < math.inf:
        raise InputError(f"variations for every prompt are 0 or more, not {varied}")
    found = [(kind, prompt) for kind, prompt, _ in _records(files, "prompt")]
    found += variations(found, round(varied * len(found)), seed)

    def encoded() -> Iterator[tuple[list[int], int, int]]:
        for kind, prompt in found:
            ids = frame.encode(prompt)
            yield ids, len(ids), kind

    return Documents.of(encoded(), pair.target.config.max_position, id_dtype(pair.target.config))


def variations(prompts: Sequence[tuple[int, str]], count: int, seed: int) -> list[tuple[int, str]]:
    """``count`` prompts like no other, of random ones of (kind, prompt): without the first words, cut short,
    ended as another one is, or followed by another.
    """
    rng = np.random.default_rng(seed)

    def varied() -> tuple[int, str]:
        kind, prompt = prompts[int(rng.integers(len(prompts)))]
        words, others = prompt.split(), prompts[int(rng.integers(len(prompts)))][1].split()
        at = int(rng.integers(1, max(2, len(words))))
        ways = words[at:], words[:at], words[:at] + others[len(others) // 2 :], words + others
        return kind, " ".join(ways[rng.integers(len(ways))] or words)

    return [varied() for _ in range(count)]


def encoded_texts(
    files: Sequence[Path], pair: Pair, stop: int, longest: int, shares: Mapping[str, float], seed: int
) -> Documents:
    """Documents of the files' lines {"kind", "prompt", "text"}: prompt, text, the token ``stop``. What is
    longer than ``longest`` ids, or has no prompt or no text, is left out, and so is what is not in the random
    share of its kind.

    Raises InputError as `encoded_prompts`.
    """
    frame, tokenizer = _frame(pair)
    rng = np.random.default_rng(seed)

    def encoded() -> Iterator[tuple[list[int], int, int]]:
        for kind, prompt, text in _records(files, "prompt", "text"):
            if text and rng.random() < shares.get(KINDS[kind], 1.0):
                ids = frame.encode(prompt)
                yield [*ids, *tokenizer.encode(text, specials=False), stop], len(ids), kind

    return Documents.of(encoded(), longest, id_dtype(pair.target.config))


def id_dtype(config: TargetConfig) -> type[np.unsignedinteger]:
    """The smallest type of `Documents` for a target's ids."""
    return np.uint32 if config.vocab_size > 1 << 16 else np.uint16


def _frame(pair: Pair) -> tuple[ChatFrame, Tokenizer]:
    template = load_template(pair.checkpoint.folder)
    if pair.tokenizer is None or template is None:
        raise InputError(f"{pair.checkpoint.folder} has no tokenizer or no chat template")
    return ChatFrame(pair.tokenizer, template), pair.tokenizer


def _records(files: Sequence[Path], *fields: str) -> Iterator[tuple[int, str, str]]:
    """(kind's index, prompt, text) of every line with a prompt; without the field "text" it is empty."""
    for file in files:
        try:
            with lzma.open(file) if file.suffix == ".xz" else file.open("rb") as opened:
                lines = opened.read().decode().rstrip("\n").split("\n")
        except (OSError, UnicodeDecodeError, lzma.LZMAError) as error:
            raise InputError(f"{file} cannot be read: {error}") from error
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                kind, prompt, *text = KINDS.index(record["kind"]), *(record[f].strip() for f in fields)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(
                    f"{file}, line {number}: not an object with {' and '.join(fields)} and a kind of "
                    f"{', '.join(KINDS)}"
                ) from error
            if prompt:
                yield kind, prompt, "".join(text)
