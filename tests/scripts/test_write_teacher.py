"""A tiny random target as the teacher: its texts go through the filters into files."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from jddtree.errors import InputError
from jddtree.tokenizer import load_tokenizer
from scripts import write_teacher
from scripts.pair.teacher_filters import Raw
from scripts.pair.teacher_prompts import SYSTEMS

BUNDLED = Path(__file__).parents[2] / "checkpoints" / "k2-mini"


class Now:
    """A pool that works at once."""

    def submit(self, work, *arguments):
        work(*arguments)
        return self

    def result(self):
        return None


def record(kind: str, number: int) -> Raw:
    return Raw(kind, f"Prompt {number}", f"text {number}", 50, -0.5, True)


def test_kept_texts_and_report(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(write_teacher, "PART", 2)
    kept = write_teacher.Kept(tmp_path, Now())
    texts = [record("story", n) for n in range(4)]
    good = [(f"Text {n} " + "x" * 80, "") for n in (1, 2, 3)]
    kept.add(texts, [good[0], ("", "repetition"), (good[0][0] + " again", ""), good[1]])
    kept.add([record("chat", 9)], [good[2]])
    kept.finish()
    parts = sorted(tmp_path.iterdir())
    assert [part.name for part in parts] == ["part-00.jsonl.xz", "part-01.jsonl.xz"]
    lines = [json.loads(line) for part in parts for line in lzma.decompress(part.read_bytes()).splitlines()]
    assert sorted(line["kind"] for line in lines) == ["chat", "story", "story"]
    assert {line["text"] for line in lines} == {text for text, _ in good}
    report = kept.report()
    assert "| repetition | 25.0 | 0.0 | 0.0 | 0.0 |" in report
    assert "| same first 64 letters as another text | 25.0 | 0.0 |" in report
    assert "| kept | 50.0 | 0.0 | 100.0 | 0.0 |" in report
    with pytest.raises(InputError, match="holds texts already"):
        write_teacher.main(["--target", "none", "--out", str(tmp_path)])


def test_words_and_frames():
    tokenizer = load_tokenizer(BUNDLED)
    template = write_teacher.load_template(BUNDLED)
    assert tokenizer is not None
    assert template is not None
    words = write_teacher.word_table(tokenizer, 5888)

    def token(text: str) -> int:
        (found,) = tokenizer.encode(text, specials=False)
        return found

    assert words.content[token(" little")]
    assert not words.content[[token(" with"), token("ing"), token("."), token(" a")]].any()
    assert words.starts[[token(" little"), token("."), token("\n")]].all()
    assert not words.starts[token("ing")]
    before, after = write_teacher.chat_frames(tokenizer, template)[SYSTEMS[1]]
    messages = [{"role": "system", "content": SYSTEMS[1]}, {"role": "user", "content": "Why is it so?"}]
    whole = write_teacher.encode_chat(tokenizer, template, messages, False)
    assert [*before, *tokenizer.encode("Why is it so?", specials=False), *after] == whole
    assert np.issubdtype(words.starts.dtype, np.bool_)
