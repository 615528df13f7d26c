"""Build the training text: teacher records, generated word problems and library code, cleaned and split.

Writes `train.jsonl` and `valid.jsonl` in the folder --out: one object a line, {"kind", "prompt", "text"}. A
record with an empty prompt is plain text (no chat form).

    python -m scripts.build_corpus --teacher FOLDER --out FOLDER [--benchmarks FOLDER] [--problems N]
    [--code-bytes N]
"""

import argparse
import ast
import glob
import gzip
import hashlib
import json
import lzma
import random
import re
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jddtree.errors import InputError
from scripts.pair.command import run
from scripts.pair.problems import problems

WORD = re.compile(r"\w+")
NGRAM = 13  # words; a text that shares so many in a row with a benchmark is dropped
PLAIN_SHARE = 0.04  # of the stories and explanations, kept without chat form
VALID_ONE_IN = 200
BENCHMARK_FILES = ("HumanEval.jsonl.gz", "mt_bench/question.jsonl", "gsm8k/cases.jsonl")
PROMPTS = Path(__file__).parent / "pair" / "prompts.json"

Record = dict[str, str]


def teacher_records(folder: Path) -> Iterator[Record]:
    """The records of every `*.jsonl.xz` part, in file order."""
    parts = sorted(glob.glob(str(folder / "*.jsonl.xz")))
    if not parts:
        raise InputError(
            f"{folder} holds no *.jsonl.xz file: pass the folder of the teacher text with --teacher"
        )
    for part in parts:
        with lzma.open(part, "rt", encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines)


def library_code(limit: int, seed: int) -> Iterator[Record]:
    """Python's own library (PSF licence), plain ASCII modules that parse, about ``limit`` bytes of it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        p for p in root.rglob("*.py") if not {"test", "tests", "site-packages", "idlelib"} & set(p.parts)
    )
    random.Random(seed).shuffle(files)
    for path in files:
        try:
            text = path.read_text(encoding="ascii")
            ast.parse(text)
        except (UnicodeDecodeError, SyntaxError, ValueError, OSError):
            continue
        if 400 <= len(text) <= 60_000 and max(map(len, text.splitlines())) <= 200:
            yield {"kind": "library", "prompt": "", "text": text}
            limit -= len(text)
            if limit <= 0:
                return


def benchmark_ngrams(folder: Path) -> set[int]:
    """Hashes of every 13 words in a row of the HumanEval, GSM8K and MT-Bench files inside the wheels of
    ``folder``.
    """
    found: set[int] = set()
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(BENCHMARK_FILES):
                    data = archive.read(name)
                    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode("utf-8")
                    for line in text.splitlines():
                        for string in _strings(json.loads(line)):
                            found |= set(_ngrams(string))
    if not found:
        raise InputError(f"{folder} holds no wheel with HumanEval, GSM8K or MT-Bench text")
    return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _ngrams(text: str) -> Iterator[int]:
    words = WORD.findall(text.lower())
    for i in range(len(words) - NGRAM + 1):
        yield hash(tuple(words[i : i + NGRAM]))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--teacher", type=Path, required=True, help="folder with *.jsonl.xz records")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl and valid.jsonl")
    parser.add_argument("--benchmarks", type=Path, help="folder with wheels whose benchmark text is removed")
    parser.add_argument("--problems", type=int, default=70_000, help="word problems to generate")
    parser.add_argument(
        "--code-bytes", type=int, default=9_000_000, help="bytes of Python's own library to add"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    records = list(teacher_records(args.teacher))
    records += [{"kind": "maths", "prompt": p, "text": a} for p, a in problems(args.problems, args.seed)]
    records += library_code(args.code_bytes, args.seed)
    held_out = {prompt for kind in json.loads(PROMPTS.read_text()).values() for prompt in kind}
    forbidden = benchmark_ngrams(args.benchmarks) if args.benchmarks else set()

    random.Random(args.seed).shuffle(records)
    args.out.mkdir(parents=True, exist_ok=True)
    counts: dict[str, list[int]] = {}
    dropped = 0
    with open(args.out / "train.jsonl", "w") as train, open(args.out / "valid.jsonl", "w") as valid:
        for record in records:
            shared = forbidden and not forbidden.isdisjoint(_ngrams(record["prompt"] + "\n" + record["text"]))
            if shared or record["prompt"] in held_out:
                dropped += 1
                continue
            digest = _digest(record["prompt"] + record["text"])
            is_valid = digest % VALID_ONE_IN == 0
            if record["kind"] in ("story", "explain") and (digest >> 32) % 1000 < 1000 * PLAIN_SHARE:
                record = record | {"prompt": ""}
            (valid if is_valid else train).write(json.dumps(record) + "\n")
            count = counts.setdefault(record["kind"], [0, 0, 0])
            count[is_valid] += 1
            count[2] += len(record["text"])
    print(f"{'kind':<10}{'train':>9}{'valid':>9}{'MB':>8}")
    for kind, (n_train, n_valid, size) in sorted(counts.items()):
        print(f"{kind:<10}{n_train:>9}{n_valid:>9}{size / 1e6:>8.1f}")
    print(f"{dropped} records dropped: a held-out prompt, or {NGRAM} words in a row shared with a benchmark")


if __name__ == "__main__":
    run(main)
