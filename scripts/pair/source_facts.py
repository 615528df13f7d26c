"""Facts and books: WordNet's definitions, the World Factbook, a Bible in modern English, novels."""

import html
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from scripts.pair.source_prose import ascii_text, page_files, pages

Record = dict[str, str]
TAG = re.compile(r"<[^>]*>")
CLASS = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}
DEFINE = (
    'Define the word "{word}".',
    'What does "{word}" mean? Answer in one sentence.',
    'Give me a dictionary definition of "{word}".',
    'What is the meaning of the word "{word}"?',
    'I read the word "{word}" in a book. What does it mean?',
    'How would a dictionary explain "{word}"?',
)
WORDNET_TERMS = re.compile(r"genus|family|order|species|native to|\bgrams\b|c\. |born|\d{3}|\(\d")


SHOUTED = re.compile(r"\b[A-Z]{4,}\b")  # the Factbook's family names


def _plain(text: str, gap: str) -> str:
    """Text without tags; ``gap`` stands for a tag."""
    return ascii_text(html.unescape(TAG.sub(gap, text)))


def wordnet(deb: Path, rng: random.Random) -> Iterator[Record]:
    """Definitions of everyday words: those used in WordNet's tagged texts as questions, others as lists."""
    files = {name.rsplit("/", 1)[-1]: data for name, data in page_files(deb) if "/wordnet/" in name}
    counted = {line.split(b"%")[0].decode() for line in files["cntlist.rev"].splitlines()}
    lines: list[str] = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in files[f"data.{part}"].decode("ascii", "replace").splitlines():
            if line.startswith(" ") or " | " not in line:
                continue
            head, gloss = line.split(" | ", 1)
            fields = head.split()
            word = fields[4].split("(")[0].replace("_", " ")
            meaning, *examples = (piece.strip() for piece in gloss.strip().split(";"))
            if word != word.lower() or not word.replace(" ", "").isalpha() or not 15 <= len(meaning) <= 160:
                continue
            if WORDNET_TERMS.search(meaning) or not meaning.isascii():
                continue
            example = next((e for e in examples if e.startswith('"') and e.endswith('"') and len(e) > 12), "")
            kind = CLASS[fields[2]]
            if fields[4] in counted:
                text = f'As {"an" if kind[0] == "a" else "a"} {kind}, "{word}" means: {meaning}.'
                text += f" For example: {example}" if example else ""
                yield {"kind": "facts", "prompt": rng.choice(DEFINE).format(word=word), "text": text}
            else:
                lines.append(f"{word} ({kind}): {meaning}." + (f" Example: {example}" if example else ""))
    rng.shuffle(lines)
    for text in pages(iter(lines)):
        yield {"kind": "facts", "prompt": "", "text": text.replace("\n\n", "\n")}


def everyday_nouns(deb: Path) -> list[str]:
    """Short plain nouns that WordNet's tagged texts use at least five times, things, food and plants."""
    files = {name.rsplit("/", 1)[-1]: data for name, data in page_files(deb) if "/wordnet/" in name}
    counts: dict[str, int] = {}
    for line in files["cntlist.rev"].decode("ascii", "replace").splitlines():
        sense, _, count = line.split(" ")
        word, _, code = sense.partition("%")
        if (
            code.startswith(("1:06:", "1:13:", "1:20:")) and word.isalpha() and len(word) > 2
        ):  # things, food, plants
            counts[word] = counts.get(word, 0) + int(count)
    return sorted(word for word, count in counts.items() if count >= 5)


TOLD = (
    "Background,Location,Area - comparative,Coastline,Climate,Terrain,Natural resources,Natural hazards,"
    "Geography - note,Population distribution,Ethnic groups,Languages,Religions,Environmental issues,"
    "Government type,"
    "Capital,Independence,National holiday,Flag,National symbol(s),Economic overview,Agricultural products,"
    "Industries,Exports - partners,Exports - commodities,Imports - commodities,Military - note"
).split(",")


def factbook(wheel: Path) -> Iterator[str]:
    """Short texts on every country: a line "Country, topic: text" each."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith(".json")):
            sections = json.loads(archive.read(name))
            topics = {key: value for section in sections.values() for key, value in section.items()}
            names = topics.get("Country name", {})
            country = _plain(names.get("conventional short form", {}).get("text", ""), " ")
            if not country or country == "none":
                country = _plain(names.get("conventional long form", {}).get("text", ""), " ")
            if country:
                yield from pages(line for key in TOLD for line in _topic(country, key, topics.get(key, {})))


def _topic(country: str, key: str, value: dict) -> Iterator[str]:
    texts = [value] if "text" in value else [item for item in value.values() if isinstance(item, dict)]
    for item in texts[:2]:
        text = _plain(item.get("text", ""), " ")
        if key == "Background":
            for paragraph in item["text"].split("<br><br>"):
                yield f"{country}: {SHOUTED.sub(lambda name: name.group().title(), _plain(paragraph, ' '))}"
        elif len(text) > 3 and text.isascii():
            yield f"{country}, {key.lower()}: {text[:1200]}" + ("" if text.endswith(".") else ".")


NOTE = re.compile(r"<note\b.*?</note>|<title\b.*?</title>|<milestone\b[^>]*>", re.DOTALL)
VERSE_END = re.compile(r"<(?:div|chapter|lb|l|lg)\b[^>]*>")


def bible(deb: Path) -> Iterator[str]:
    """The World English Bible: zlib blocks of OSIS text, one a book (index: offset, packed, plain size)."""
    files = {name.rsplit("/", 1)[-1]: data for name, data in page_files(deb)}
    for part in ("nt", "ot"):
        index, data = files[f"{part}.bzs"], files[f"{part}.bzz"]
        for at in range(0, len(index), 12):
            offset, size, _ = struct.unpack_from("<III", index, at)
            book = zlib.decompress(data[offset : offset + size]).decode("utf-8", "replace")
            blocks = VERSE_END.sub("\n", NOTE.sub("", book)).split("\n")
            texts = (_plain(block, "") for block in blocks)
            yield from pages(text for text in texts if len(text) > 60 and text.isascii())


R_STRING = b"\x00\x04\x00\x09"  # a string of an R data file: this tag, its length, its bytes


def novels(deb: Path) -> Iterator[str]:
    """Jane Austen's novels: zlib blocks of R vectors, one string a printed line, an empty one between
    paragraphs.
    """
    data = next(data for name, data in page_files(deb) if name.endswith("data/Rdata.rdb"))
    while len(data) > 4:
        unpacker = zlib.decompressobj()
        book = unpacker.decompress(data[4:])
        data = unpacker.unused_data
        yield from pages(text for text in _lines(book) if 60 < len(text) <= 1500 and text.isascii())


def _lines(book: bytes) -> Iterator[str]:
    at, held = book.find(R_STRING), []
    while at >= 0:
        size = int.from_bytes(book[at + 4 : at + 8], "big", signed=True)
        line = book[at + 8 : at + 8 + max(size, 0)].decode("utf-8", "replace").strip()
        if line:
            held.append(line)
        elif held:
            yield ascii_text(" ".join(held)).replace("_", "")
            held = []
        at = book.find(R_STRING, at + 8 + max(size, 0))
