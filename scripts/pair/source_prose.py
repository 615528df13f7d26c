"""Prose of the HTML pages inside a Debian package: paragraphs that read like sentences, nothing else."""

import html
import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from jddtree.errors import InputError

# Pages that hold code, indexes, other languages, or the same sentence thousands of times.
SKIP = re.compile(
    r"/_modules/|/src/|/source/|genindex|py-modindex|/search|/arch/|core_arch|/simd/|/js/|/c3ref/c_|"
    r"/(?:da|de|es|fr|ja|ko|pt-br|ru|tr|zh-cn)/|\.(?:de|es|fr|ja|ko|pt-br|ru|tr|zh-cn)\b|/all\.html|"
    r"/generated/|whatsnew/changelog|/doxygen/|/java/|license|copying|copyright|print\.html",
    re.IGNORECASE,
)
DROPPED = re.compile(
    r"<(script|style|head|pre|nav|form|select|header|footer|svg|table|code-block)\b.*?</\1\s*>|<!--.*?-->",
    re.DOTALL | re.IGNORECASE,
)
BLOCK = re.compile(
    r"</?(?:p|li|ul|ol|dl|dd|dt|div|h[1-6]|table|tr|td|th|tbody|br|hr|section|article|main|body|html|blockquote|"
    r"aside|summary|details|center)\b[^>]*>",
    re.IGNORECASE,
)
TAG = re.compile(r"<[^>]*>")
SPACE = re.compile(r"\s+")
PLAIN = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "--",
    "\u2026": "...",
    "\xa0": " ", "\u2212": "-", "\u2192": "->", "\xb6": "", "\u200b": "", "\uf0c1": "", "\u2022": "",
})  # fmt: skip
COMMON = set(
    "the a an of to in is are and that it for this with be by or as if not can you on will when which at "
    "from have has was but".split()
)
WORD = re.compile(r"[A-Za-z']+")
ODD = re.compile(r"[^A-Za-z ,.'\"();:-]")
PAGE = 1700  # characters a document: about one training row


def page_files(deb: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every file in a Debian package, in its order."""
    try:
        packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError(f"{deb} cannot be unpacked, dpkg-deb (Debian) is needed: {error}") from error
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file:
                yield member.name, file.read()


def ascii_text(text: str) -> str:
    """Typographic signs as ASCII, white space as single spaces."""
    return SPACE.sub(" ", text.translate(PLAIN)).strip()


def paragraphs(page: str) -> Iterator[str]:
    """The paragraphs of an HTML page that read like sentences."""
    for block in BLOCK.split(DROPPED.sub("\n<p>", page)):
        text = ascii_text(html.unescape(TAG.sub("", block)))
        if reads_well(text):
            yield text


def reads_well(text: str) -> bool:
    """At least 50 characters of plain sentences: few signs, many common words, an end."""
    if not 50 <= len(text) <= 1500 or not text.isascii():
        return False
    if not (text[0].isupper() or text[0] == '"') or text[-1] not in '.!?:)"' or "  " in text:
        return False
    words = WORD.findall(text)
    if len(words) < 8 or len(ODD.findall(text)) > 0.06 * len(text):
        return False
    if any(len(word) > 24 for word in text.split()):
        return False
    return sum(word.lower() in COMMON for word in words) >= 0.2 * len(words)


def documents(deb: Path, seen: set[int]) -> Iterator[str]:
    """Texts of some `PAGE` characters from one package: the new paragraphs of a page, in order. ``seen``
    holds the hashes of earlier paragraphs and is added to.
    """
    for name, data in page_files(deb):
        if not name.endswith((".html", ".html.en", ".htm")) or SKIP.search(name) or len(data) > 8_000_000:
            continue
        page = data.decode("utf-8", "replace")
        yield from pages(_new(paragraphs(page), seen))


def _new(texts: Iterator[str], seen: set[int]) -> Iterator[str]:
    for text in texts:
        key = hash(text.lower()[:160])
        if key not in seen:
            seen.add(key)
            yield text


def pages(texts: Iterator[str]) -> Iterator[str]:
    """Join paragraphs into documents of at most `PAGE` characters; a lone short paragraph is dropped."""
    held: list[str] = []
    for text in texts:
        if held and sum(map(len, held)) + len(text) > PAGE:
            yield "\n\n".join(held)
            held = []
        held.append(text)
    if sum(map(len, held)) >= 200:
        yield "\n\n".join(held)
