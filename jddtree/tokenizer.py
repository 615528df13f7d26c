"""Text to token ids and back: `tokenizer.json`, or Kimi's `tiktoken.model` converted exactly."""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
from tokenizers.models import BPE

from jddtree.config import read_json
from jddtree.errors import InputError

SPECIAL_SLOTS = 256  # ids after the ranks of a tiktoken file; slots without a name are reserved tokens
END_OF_TURN = "<|im_end|>"

# Inputs are cut before encoding, so that one word of megabytes does not stall the merges.
_MAX_PIECE = 400_000
_LONG_RUN = re.compile(r"\s{25001,}|\S{25001,}")
_MAX_RUN = 25_000

# Kimi's split pattern, one alternative a line.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


@dataclass(frozen=True)
class Tokenizer:
    """One vocabulary. Build it with `load_tokenizer`.

    Attributes:
        backend: recognises the names of special tokens in text.
        plain: the same vocabulary, to which those names are ordinary text.
        markup: every token that text must not spell by accident, id -> name. A token that the model
            writes itself, such as `<think>`, is here too although it is not flagged special.
        hidden: the ids in `markup` that are flagged special (left out by `decode(skip_special=True)`).
        cut_runs: cut giant inputs first, as Kimi's tokenizer does.
    """

    backend: tokenizers.Tokenizer
    plain: tokenizers.Tokenizer
    markup: dict[int, str]
    hidden: frozenset[int]
    cut_runs: bool

    def encode(self, text: str, specials: bool) -> list[int]:
        """Ids of `text`; no begin token is added.

        Args:
            text: any text.
            specials: True reads the names of special tokens as those tokens; False as plain text.

        Raises:
            InputError: the text holds a lone surrogate, so it is not Unicode text.
        """
        _require_unicode(text)
        engine = self.backend if specials else self.plain
        ids: list[int] = []
        for piece in _pieces(text) if self.cut_runs else (text,):
            ids.extend(engine.encode(piece, add_special_tokens=False).ids)
        return ids

    def special_spans(self, text: str) -> list[tuple[int, int, int]]:
        """(id, start, end) of every special token that `text` spells, in order, in characters.

        Raises:
            InputError: as `encode`.
        """
        _require_unicode(text)
        found = self.backend.encode(text, add_special_tokens=False)
        return [
            (token, start, end)
            for token, (start, end) in zip(found.ids, found.offsets, strict=True)
            if token in self.markup
        ]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of `ids`. Ids that the vocabulary lacks give no text; broken UTF-8 gives U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special)

    def id_of(self, name: str) -> int | None:
        """Id of the token that is written `name` (a special token's name, say), or None."""
        return self.backend.token_to_id(name)


class TextStream:
    """Text of a growing list of ids, handed out in pieces that never end inside a character.

    The pieces and `flush()` joined equal `tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._known = 0  # ids whose text is out; text breaks between characters here
        self._context = 0  # decoding starts here, since some decoders look at the token before
        self._length = 0  # characters handed out

    def push(self, ids: Iterable[int]) -> str:
        """Add ids; the text that is complete now and was not handed out before."""
        return "".join(self._step(token) for token in ids)

    def flush(self) -> str:
        """The rest, a character that stayed incomplete included (as U+FFFD)."""
        rest = self._tokenizer.decode(self._ids, self._skip_special)[self._length :]
        self._known = self._context = len(self._ids)
        self._length += len(rest)
        return rest

    def _step(self, token: int) -> str:
        self._ids.append(token)
        window = self._tokenizer.decode(self._ids[self._context :], self._skip_special)
        if window.endswith("\ufffd"):
            return ""
        before = self._tokenizer.decode(self._ids[self._context : self._known], self._skip_special)
        text = window[len(before) :]
        if text:
            self._context, self._known = self._known, len(self._ids)
            self._length += len(text)
        return text


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """Tokenizer of a checkpoint folder: `tokenizer.json` if it is there, else `tiktoken.model` with
    `tokenizer_config.json`, else None.

    Raises:
        InputError: a file is malformed; the line names the file and, where there is one, its line.
    """
    if (folder / "tokenizer.json").is_file():
        return _load_tokenizer_json(folder / "tokenizer.json")
    if (folder / "tiktoken.model").is_file():
        return _load_tiktoken(folder / "tiktoken.model", folder / "tokenizer_config.json")
    return None


def stop_ids(config: dict, generation_config: dict | None, tokenizer: Tokenizer | None) -> list[int]:
    """Ids that end a text, each once, in order of discovery.

    They come from the config's `eos_token_id` (top level and `text_config`), from generation_config's,
    and from the token named `<|im_end|>`: Kimi chats end with it whatever the config says.

    Raises:
        InputError: an `eos_token_id` is neither an id nor a list of ids.
    """
    sources = (
        ("config.json", config),
        ("config.json, text_config", config.get("text_config") or {}),
        ("generation_config.json", generation_config or {}),
    )
    found: dict[int, None] = {}
    for place, values in sources:
        eos = values.get("eos_token_id")
        for token in eos if isinstance(eos, list) else [] if eos is None else [eos]:
            if type(token) is not int or token < 0:
                raise InputError(
                    f"{place}: eos_token_id must be a token id or a list of them, found {eos!r}."
                )
            found[token] = None
    end_of_turn = tokenizer.id_of(END_OF_TURN) if tokenizer else None
    if end_of_turn is not None:
        found[end_of_turn] = None
    return list(found)


def _require_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"The text is not valid Unicode: character {error.start} is a lone surrogate "
            "(were its bytes not UTF-8?)."
        ) from error


def _pieces(text: str) -> Iterator[str]:
    """`text` in pieces of at most 400,000 characters, and cut inside runs of (non-)whitespace so that no
    run in a piece is longer than 25,000 characters."""
    for start in range(0, len(text), _MAX_PIECE):
        piece = text[start : start + _MAX_PIECE]
        done = 0
        for run in _LONG_RUN.finditer(piece):
            for cut in range(run.start() + _MAX_RUN, run.end(), _MAX_RUN):
                yield piece[done:cut]
                done = cut
        yield piece[done:]


def _load_tokenizer_json(path: Path) -> Tokenizer:
    read_json(path)  # for the place of a syntax error, which the library's own message lacks
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{path}: not a tokenizer file ({error}).") from error
    return _with_plain(backend, cut_runs=False)


def _load_tiktoken(path: Path, config_path: Path) -> Tokenizer:
    """Kimi's layout: byte-pair ranks, then 256 special slots. Conversion as in the public converters,
    with every merge that gives a token of the vocabulary, in the order tiktoken would take them."""
    if not config_path.is_file():
        raise InputError(f"{path} needs tokenizer_config.json beside it for the names of the special tokens.")
    ranks = _read_ranks(path)
    to_text = _byte_characters()
    names = [token.decode("latin-1").translate(to_text) for token in ranks]
    merges = [(names[left], names[right]) for left, right in _merges(ranks)]
    # ignore_merges: a piece that is a token as a whole is that token, even if no merges lead to it.
    model = BPE(
        vocab={name: rank for rank, name in enumerate(names)},
        merges=merges,
        ignore_merges=True,
        fuse_unk=False,
        byte_fallback=False,
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    specials = _special_slots(config_path, len(ranks))
    backend.add_tokens(specials)
    for offset, token in enumerate(specials):
        if backend.token_to_id(token.content) != len(ranks) + offset:
            raise InputError(
                f"{config_path}: special token {token.content!r} is also an ordinary token or a double."
            )
    return _with_plain(backend, cut_runs=True)


def _read_ranks(path: Path) -> list[bytes]:
    """Token bytes by rank, from lines of `base64 rank`."""
    by_rank: dict[int, bytes] = {}
    seen: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        fields = line.split()
        try:
            encoded, rank_text = fields
            token, rank = base64.b64decode(encoded, validate=True), int(rank_text)
        except ValueError as error:  # binascii's own error is one
            raise InputError(f"{place}: expected `base64-of-a-token rank`.") from error
        if not token:
            raise InputError(f"{place}: the token is empty.")
        if rank in by_rank:
            raise InputError(f"{place}: rank {rank} is taken by an earlier line.")
        if token in seen:
            raise InputError(f"{place}: the token of line {seen[token]} again.")
        by_rank[rank], seen[token] = token, number
    missing = next((rank for rank in range(len(by_rank)) if rank not in by_rank), None)
    if missing is not None:
        raise InputError(f"{path}: rank {missing} is missing (there are {len(by_rank)} tokens).")
    absent = next((byte for byte in range(256) if bytes([byte]) not in seen), None)
    if absent is not None:
        raise InputError(
            f"{path}: no token for the single byte 0x{absent:02x}, so some text has no encoding."
        )
    return [by_rank[rank] for rank in range(len(by_rank))]


def _merges(ranks: list[bytes]) -> Iterator[tuple[int, int]]:
    """All (left, right) whose bytes join to a token, by the joined token's rank, then by (left, right)."""
    rank_of = {token: rank for rank, token in enumerate(ranks)}
    for token in ranks:
        splits = ((rank_of.get(token[:cut]), rank_of.get(token[cut:])) for cut in range(1, len(token)))
        yield from sorted((left, right) for left, right in splits if left is not None and right is not None)


def _byte_characters() -> dict[int, int]:
    """Byte -> the printable character that stands for it in byte-level BPE files (GPT-2's table):
    printable Latin-1 bytes stand for themselves, the others follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {byte: 0x100 + i for i, byte in enumerate(others)}


def _special_slots(config_path: Path, n_ranks: int) -> list[AddedToken]:
    """The 256 special tokens in id order. Names past the last slot, which old files have, are left out."""
    named: dict[int, AddedToken] = {}
    entries = read_json(config_path).get("added_tokens_decoder")
    if not isinstance(entries, dict):
        raise InputError(f"{config_path}: no added_tokens_decoder object with the special tokens' names.")
    for key, entry in entries.items():
        if not (key.isascii() and key.isdigit() and isinstance(entry, dict) and entry.get("content")):
            raise InputError(
                f"{config_path}: added_tokens_decoder entry {key!r} is not `id: {{content: name}}`."
            )
        if int(key) < n_ranks:
            raise InputError(
                f"{config_path}: special token {entry['content']!r} has id {key}, "
                f"but the first {n_ranks} ids belong to tiktoken.model."
            )
        named[int(key)] = AddedToken(
            str(entry["content"]), normalized=False, special=bool(entry.get("special"))
        )
    return [
        named.get(slot) or AddedToken(f"<|reserved_token_{slot}|>", normalized=False, special=True)
        for slot in range(n_ranks, n_ranks + SPECIAL_SLOTS)
    ]


def _with_plain(backend: tokenizers.Tokenizer, cut_runs: bool) -> Tokenizer:
    """The tokenizer with its twin that knows no special names."""
    added = backend.get_added_tokens_decoder()
    settings = json.loads(backend.to_str())
    settings["added_tokens"] = []
    settings["post_processor"] = None
    return Tokenizer(
        backend=backend,
        plain=tokenizers.Tokenizer.from_str(json.dumps(settings)),
        markup={token_id: token.content for token_id, token in added.items()},
        hidden=frozenset(token_id for token_id, token in added.items() if token.special),
        cut_runs=cut_runs,
    )
