"""Prompts from text files, in the chat form of a target."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jddtree.chat import encode_chat, load_template
from jddtree.errors import InputError
from jddtree.load import Pair
from scripts.pair.documents import KINDS, Documents


def encoded_prompts(files: Sequence[Path], pair: Pair) -> Documents:
    """Documents that are prompts alone, of the files' lines {"kind", "prompt", ...}; empty prompts are left
    out.

    Raises InputError for a line of another form, and for a target without tokenizer or chat template.
    """
    template = load_template(pair.checkpoint.folder)
    tokenizer = pair.tokenizer
    if tokenizer is None or template is None:
        raise InputError(f"{pair.checkpoint.folder} has no tokenizer or no chat template")

    def encoded() -> Iterator[tuple[list[int], int, int]]:
        for kind, prompt in _records(files):
            ids = encode_chat(tokenizer, template, [{"role": "user", "content": prompt}], False)
            yield ids, len(ids), kind

    wide = pair.target.config.vocab_size > 1 << 16
    return Documents.of(encoded(), pair.target.config.max_position, np.uint32 if wide else np.uint16)


def _records(files: Sequence[Path]) -> Iterator[tuple[int, str]]:
    """(kind's index, prompt) of every line."""
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read: {error}") from error
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                kind, prompt = KINDS.index(record["kind"]), record["prompt"]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f'{file}, line {number}: not an object with "prompt" and a "kind" of {", ".join(KINDS)}'
                ) from error
            if prompt:
                yield kind, prompt
