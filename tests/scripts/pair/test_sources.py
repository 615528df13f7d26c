"""What is taken of packages: code, functions, prose, definitions, books; and how they are fetched."""

import io
import json
import random
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from jddtree.errors import InputError
from scripts import build_corpus, fetch_sources
from scripts.pair import source_facts, source_prose
from scripts.pair.source_code import clean, functions, modules
from scripts.pair.sources import LIST, listed, present

MODULE = '''# Copyright 2020 Somebody
# Licensed under a licence.

"""A module about numbers."""

import math


def root_sum(values):
    """Return the sum of the square roots.

    More words.
    """
    total = 0.0
    for value in values:
        total += math.sqrt(value)
    return total


def needs_a_neighbour(values):
    """Return what the neighbour says about it."""
    found = root_sum(values)
    return found
'''
PAGE = """<html><head><title>No.</title></head><body><nav><p>The menu is not a part of the text that we
want to read here.</p></nav><h1>Title</h1><p>The quick brown fox jumps over the <em>lazy</em> dog, and it is
the end of the day &amp; night.</p><pre>code = that(is) + not * prose</pre><ul><li>short item</li></ul>
<p>self.foo(bar)[0] = {1: 2, 3: 4}; x_y_z += call(a, b, c) % 17 ** 3 ** foo_bar_baz</p></body></html>"""


def test_sources_are_listed_once_with_a_licence():
    sources = listed()
    assert len({source.name for source in sources}) == len(sources)
    assert all(source.licence and source.megabytes > 0 for source in sources)
    readers = {source.reader for source in sources}
    assert readers == {"code", "factbook", "prose", "wordnet", "bible", "novels"}
    assert set(json.loads(LIST.read_text())) == {"wheels", "debs"}


def test_clean_code():
    text = clean(MODULE.encode())
    assert text is not None
    assert text.startswith('"""A module about numbers."""')
    for bad in (
        MODULE + "x = (",
        MODULE + f"y = '{'z' * 150}'",
        MODULE.replace("# Licensed", "# GNU General Public"),
        MODULE + "t = [" + "12, 34,\n" * 200 + "]",
        MODULE + "# caf\u00e9",
    ):
        assert clean(bad.encode()) is None


def test_functions_become_chats():
    (record,) = functions(MODULE, random.Random(0))
    assert record["kind"] == "code"
    assert "returns the sum of the square roots" in record["prompt"] + record["text"]
    asked = [r for seed in range(9) for r in functions(MODULE, random.Random(seed)) if "```" in r["text"]]
    namespace: dict = {}
    exec(asked[0]["text"].split("```python\n")[1].split("```")[0], namespace)
    assert namespace["root_sum"]([4, 9]) == 5
    assert namespace["root_sum"].__doc__ == "Return the sum of the square roots."


def test_modules_of_a_wheel(tmp_path: Path):
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("a/good.py", "a/tests/x.py", "a/_vendor/y.py", "a/test_z.py", "a/data.txt"):
            archive.writestr(name, MODULE)
    assert list(modules(wheel, 0)) == [clean(MODULE.encode())]


def test_prose_of_a_page():
    assert list(source_prose.paragraphs(PAGE)) == [
        "The quick brown fox jumps over the lazy dog, and it is the end of the day & night."
    ]
    texts = ["word " * 100 + "."] * 3
    assert [len(page) for page in source_prose.pages(iter(texts * 2))] == [3 * 501 + 4] * 2
    assert list(source_prose.pages(iter(["short."]))) == []


def _files(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> Path:
    """Let every Debian package hold ``files``."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    done = subprocess.CompletedProcess([], 0, packed.getvalue())
    monkeypatch.setattr(source_prose.subprocess, "run", lambda *_, **__: done)
    return Path("any.deb")


def test_repeated_paragraphs_are_taken_once(monkeypatch):
    long = "<p>" + "The cat and the dog are in the house, and it is not so bad. " * 4 + "</p>"
    deb = _files(monkeypatch, {"./doc/a.html": long.encode(), "./doc/b.html": long.encode()})
    assert len(list(source_prose.documents(deb, set()))) == 1


def test_wordnet(monkeypatch):
    data = (
        '  1 licence\n001 04 n 01 lamp 0 000 | a thing that gives light; "he lit the lamp"\n'
        "002 04 n 01 Paris 0 000 | the capital of a country in Europe\n"
        "003 04 v 01 lamp_up 0 000 | shine brightly at something far away\n"
    )
    files = {f"./usr/share/wordnet/data.{part}": b"" for part in ("verb", "adj", "adv")}
    files |= {
        "./usr/share/wordnet/data.noun": data.encode(),
        "./usr/share/wordnet/cntlist.rev": b"lamp%1:06:00:: 1 20\n",
    }
    deb = _files(monkeypatch, files)
    asked, *_ = source_facts.wordnet(deb, random.Random(0))
    assert (
        asked["text"] == 'As a noun, "lamp" means: a thing that gives light. For example: "he lit the lamp"'
    )
    assert '"lamp"' in asked["prompt"]
    assert source_facts.everyday_nouns(deb) == ["lamp"]


def test_books(monkeypatch):
    text = (
        "<title>T</title><p/>In the <w>beginning</w> there was a very long sentence about all the things. "
        * 3
    )
    book = zlib.compress(f"<div>{text}".encode())
    index = b"".join(number.to_bytes(4, "little") for number in (0, len(book), 9))
    files = {"./ot.bzs": b"", "./ot.bzz": b"", "./nt.bzs": index, "./nt.bzz": book}
    (page,) = source_facts.bible(_files(monkeypatch, files))
    assert page.startswith("In the beginning there was a very long sentence")
    lines = [
        b"It was a long and rather rainy evening, and",
        b"nobody came to the house of the old _miller_.",
        b"",
    ]
    strings = b"".join(b"\x00\x04\x00\x09" + len(line).to_bytes(4, "big") + line for line in lines * 3)
    packed = b"\x00\x00\x00\x00" + zlib.compress(strings)
    (page,) = source_facts.novels(_files(monkeypatch, {"./data/Rdata.rdb": packed}))
    assert (
        page.split("\n\n")
        == ["It was a long and rather rainy evening, and nobody came to the house of the old miller."] * 3
    )


def test_factbook(tmp_path: Path):
    wheel = tmp_path / "f.whl"
    country = {
        "Introduction": {"Background": {"text": "A land of <b>hills</b>. Its head is Ann SMITHSON." * 6}},
        "Government": {"Country name": {"conventional short form": {"text": "Hillia"}}},
        "Geography": {"Climate": {"text": "mild; wet"}},
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("data/hi.json", json.dumps(country))
    (page,) = source_facts.factbook(wheel)
    assert page.startswith("Hillia: A land of hills . Its head is Ann Smithson.")
    assert page.endswith("Hillia, climate: mild; wet.")


def test_source_records_keep_to_the_limit(tmp_path: Path, capsys):
    with zipfile.ZipFile(tmp_path / "toolz-1.2.0-py3-none-any.whl", "w") as archive:
        archive.writestr("a/good.py", MODULE)
    ((source, path),) = present(tmp_path)
    assert (source.name, path.name) == ("toolz", "toolz-1.2.0-py3-none-any.whl")
    records = list(build_corpus.source_records(tmp_path, 0))
    assert [record["kind"] for record in records] == ["code", "library"]
    assert "toolz 1.2.0 (BSD-3-Clause): 2 texts" in capsys.readouterr().out


def test_fetching(tmp_path: Path, monkeypatch, capsys):
    wheel, deb = next(s for s in listed() if s.is_wheel), next(s for s in listed() if not s.is_wheel)
    monkeypatch.setattr(fetch_sources, "listed", lambda: [wheel, deb])
    monkeypatch.setattr(fetch_sources.shutil, "which", lambda name: None)
    (tmp_path / f"{wheel.name}-{wheel.version}-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(InputError, match="1 of 2 packages are missing"):
        fetch_sources.main(["--out", str(tmp_path)])
    assert f"2/2 {deb.name} is a Debian package and apt-get is not here" in capsys.readouterr().out
    with pytest.raises(InputError, match="holds none of the listed packages"):
        present(tmp_path / "empty")
