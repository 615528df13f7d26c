"""Encoded documents: Kimi's chat form as ids, one flat array on disk, and packing into training rows."""

import io
import json
import lzma
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int32, UInt8, UInt16, UInt32

from jddtree.errors import InputError
from jddtree.tokenizer import Tokenizer

KINDS = ("story", "explain", "chat", "code", "maths", "library", "docs", "facts")


@dataclass(frozen=True)
class Special:
    """Ids of the special tokens, at Kimi's offsets above the ``base`` ordinary tokens."""

    base: int

    @property
    def end_of_text(self) -> int:
        return self.base + 1

    @property
    def end_of_turn(self) -> int:
        return self.base + 2

    @property
    def mask(self) -> int:
        """The [UNK] slot, which no text contains: the drafter's mask token."""
        return self.base + 254

    @property
    def pad(self) -> int:
        return self.base + 255


@dataclass(frozen=True)
class ChatForm:
    """Encodes documents as the chat template renders them with thinking off (spec kimi 6.3)."""

    tokenizer: Tokenizer
    special: Special
    before: list[int]
    between: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, special: Special) -> "ChatForm":
        return cls(
            tokenizer,
            special,
            tokenizer.encode("<|im_user|>user<|im_middle|>", specials=True),
            tokenizer.encode(
                "<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>", specials=True
            ),
        )

    def prompt(self, text: str) -> list[int]:
        """Ids up to the first token of the answer."""
        return [*self.before, *self.tokenizer.encode(text, specials=False), *self.between]

    def document(self, prompt: str, text: str) -> tuple[list[int], int]:
        """(ids, ids that come before the answer). Without a prompt it is plain text, closed by [EOS]."""
        answer = self.tokenizer.encode(text, specials=False)
        if not prompt:
            return [*answer, self.special.end_of_text], 0
        ids = self.prompt(prompt)
        return [*ids, *answer, self.special.end_of_turn], len(ids)


@dataclass(frozen=True)
class Documents:
    """Many documents end to end. ``prompts`` counts a document's ids before its answer; ``kinds`` indexes
    KINDS.
    """

    tokens: UInt16[np.ndarray, " total"] | UInt32[np.ndarray, " total"]
    lengths: Int32[np.ndarray, " docs"]
    prompts: Int32[np.ndarray, " docs"]
    kinds: UInt8[np.ndarray, " docs"]

    @classmethod
    def of(
        cls,
        documents: Iterable[tuple[Sequence[int] | np.ndarray, int, int]],
        longest: int,
        dtype: type[np.unsignedinteger] = np.uint16,
    ) -> "Documents":
        """From (ids, prompt ids, kind). A plain document longer than ``longest`` is cut into pieces; a chat
        document is dropped. ``dtype``: of the tokens; a vocabulary over 65,536 needs np.uint32.
        """
        tokens, lengths, prompts, kinds = [], [], [], []
        for ids, prompt, kind in documents:
            if prompt and len(ids) > longest:
                continue
            for start in range(0, len(ids), longest):
                piece = np.array(ids[start : start + longest], dtype)
                tokens.append(piece)
                lengths.append(len(piece))
                prompts.append(prompt)
                kinds.append(kind)
        return cls(
            np.concatenate(tokens) if tokens else np.zeros(0, dtype),
            np.array(lengths, np.int32),
            np.array(prompts, np.int32),
            np.array(kinds, np.uint8),
        )

    @classmethod
    def load(cls, path: Path) -> "Documents":
        """Raises InputError when there is no such file or it is none of ours."""
        try:
            with lzma.open(path) as file, np.load(io.BytesIO(file.read())) as arrays:
                return cls(arrays["tokens"], arrays["lengths"], arrays["prompts"], arrays["kinds"])
        except (OSError, lzma.LZMAError, KeyError, ValueError) as error:
            raise InputError(f"{path} is not a file of encoded documents: {error}") from error

    @classmethod
    def load_part(cls, folders: Sequence[Path], part: str) -> "Documents":
        """The "train" or "valid" part of all folders. Raises InputError as `load`."""
        first, *rest = [cls.load(folder / f"{part}.npz.xz") for folder in folders]
        for other in rest:
            first = first.joined(other)
        return first

    def save(self, path: Path) -> None:
        """Write `.npz` inside `.xz`; 16-bit words are what the filter is set for."""
        buffer = io.BytesIO()
        np.savez(buffer, tokens=self.tokens, lengths=self.lengths, prompts=self.prompts, kinds=self.kinds)
        words = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}]
        with lzma.open(path, "wb", filters=words) as file:
            file.write(buffer.getvalue())

    def starts(self) -> Int32[np.ndarray, " docs"]:
        """Offset of every document in ``tokens``."""
        return (np.cumsum(self.lengths) - self.lengths).astype(np.int32)

    def take(self, chosen: np.ndarray) -> "Documents":
        """The documents of the given indices, in that order."""
        starts = self.starts()
        pieces = [self.tokens[starts[i] : starts[i] + self.lengths[i]] for i in chosen]
        tokens = np.concatenate(pieces) if pieces else self.tokens[:0]
        return Documents(tokens, self.lengths[chosen], self.prompts[chosen], self.kinds[chosen])

    def joined(self, other: "Documents") -> "Documents":
        return Documents(
            np.concatenate([self.tokens, other.tokens]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.prompts, other.prompts]),
            np.concatenate([self.kinds, other.kinds]),
        )


@dataclass(frozen=True)
class Rows:
    """Documents packed into rows of T ids. ``positions`` restart at 0 with each document, so they also tell
    documents apart; the rest of a row is padding, whose positions are all 0. ``answer`` marks ids that the
    model is to write.
    """

    tokens: UInt16[np.ndarray, "rows T"] | UInt32[np.ndarray, "rows T"]
    positions: UInt16[np.ndarray, "rows T"]
    answer: Bool[np.ndarray, "rows T"]

    def __len__(self) -> int:
        return len(self.tokens)

    def gather(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens and positions as int32, and the answer's marks, of the rows of the given indices."""
        return (
            self.tokens[chosen].astype(np.int32),
            self.positions[chosen].astype(np.int32),
            self.answer[chosen],
        )

    def batches(self, size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Endless batches of ``size`` rows, in a new random order every epoch; an incomplete last batch is
        left out.
        """
        rng = np.random.default_rng(seed)
        if size > len(self):
            raise InputError(
                f"{len(self)} rows of text are too few for batches of {size}: use more text or a "
                "smaller batch"
            )
        while True:
            order = rng.permutation(len(self))
            for i in range(0, len(order) - size + 1, size):
                yield self.gather(order[i : i + size])


def pack(documents: Documents, width: int, special: Special, seed: int) -> Rows:
    """Fill rows of ``width`` ids with whole documents: in random order, each into the fullest of 64 open rows
    that holds it. Documents longer than ``width`` are left out.
    """
    starts, lengths = documents.starts(), documents.lengths
    order = np.random.default_rng(seed).permutation(len(lengths))
    rows: list[list[int]] = [[] for _ in range(64)]
    room = [(width, slot) for slot in range(64)]  # sorted
    closed: list[list[int]] = []
    for i in order[lengths[order] <= width].tolist():
        length = int(lengths[i])
        place = bisect_left(room, (length, 0))
        left, slot = room.pop(place if place < len(room) else 0)
        if left < length:  # no row holds it: the fullest is closed
            closed.append(rows[slot])
            rows[slot], left = [], width
        rows[slot].append(i)
        insort(room, (left - length, slot))
    closed += [row for row in rows if row]
    tokens = np.full((len(closed), width), special.pad, documents.tokens.dtype)
    positions = np.zeros((len(closed), width), np.uint16)
    answer = np.zeros((len(closed), width), bool)
    ramp = np.arange(width, dtype=np.uint16)
    begins, sizes, heads = starts.tolist(), lengths.tolist(), documents.prompts.tolist()
    for row, members in enumerate(closed):
        at = 0
        for i in members:
            n = sizes[i]
            tokens[row, at : at + n] = documents.tokens[begins[i] : begins[i] + n]
            positions[row, at : at + n] = ramp[:n]
            answer[row, at + heads[i] : at + n] = True
            at += n
    return Rows(tokens, positions, answer)


def encode_file(path: Path, form: ChatForm, longest: int) -> Documents:
    """Encode a `.jsonl` of records as written by `scripts.build_corpus`."""

    def encoded() -> Iterator[tuple[list[int], int, int]]:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                ids, prompt = form.document(record["prompt"], record["text"])
                yield ids, prompt, KINDS.index(record["kind"])

    return Documents.of(encoded(), longest)
