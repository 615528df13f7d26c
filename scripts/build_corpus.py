"""Build the training text: teacher records, generated word problems, library code, documentation and facts,
cleaned and split.

Writes `train.jsonl` and `valid.jsonl` in the folder --out: one object a line, {"kind", "prompt", "text"}. A
record with an empty prompt is plain text (no chat form). The kinds are those of `documents.KINDS`.

    python -m scripts.build_corpus --teacher FOLDER [FOLDER ...] --out FOLDER [--sources FOLDER]
    [--benchmarks FOLDER] [--problems N] [--code-bytes N]
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
from itertools import chain
from pathlib import Path
from typing import Any

from jddtree.errors import InputError
from scripts.pair.command import run
from scripts.pair.problems import problems
from scripts.pair.source_code import functions, modules
from scripts.pair.source_facts import bible, factbook, novels, wordnet
from scripts.pair.source_prose import documents
from scripts.pair.sources import present

WORD = re.compile(r"\w+")
NGRAM = 13  # words; a text that shares so many in a row with a benchmark is dropped
PLAIN_SHARE = 0.04  # of the stories and explanations, kept without chat form
VALID_ONE_IN = 200
SAME_LETTERS = 64  # teacher texts that begin with the same letters count as one
LONGEST_MODULE = 60_000  # bytes
BENCHMARK_FILES = ("HumanEval.jsonl.gz", "mt_bench/question.jsonl", "gsm8k/cases.jsonl")
PROMPTS = Path(__file__).parent / "pair" / "prompts.json"

Record = dict[str, str]


def teacher_records(folders: list[Path]) -> Iterator[Record]:
    """The records of every `*.jsonl.xz` part, in file order, less those whose text begins as an earlier
    one of the same kind.
    """
    seen: set[int] = set()
    for folder in folders:
        parts = sorted(glob.glob(str(folder / "*.jsonl.xz")))
        if not parts:
            raise InputError(
                f"{folder} holds no *.jsonl.xz file: pass the folder of the teacher text with --teacher"
            )
        for part in parts:
            with lzma.open(part, "rt", encoding="utf-8") as lines:
                for line in lines:
                    record = json.loads(line)
                    start = record["text"][:SAME_LETTERS].lower()
                    if record["kind"] == "code":  # an import and a signature may well recur
                        start = record["text"]
                    key = hash((record["kind"], start))
                    if key not in seen:
                        seen.add(key)
                        yield record


def library_code(limit: int, seed: int) -> Iterator[Record]:
    """Python's own library (PSF licence), plain ASCII modules that parse, about ``limit`` bytes of it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        p for p in root.rglob("*.py") if not {"test", "tests", "site-packages", "idlelib"} & set(p.parts)
    )
    random.Random(seed).shuffle(files)
    for path in files:
        if limit <= 0:
            return
        try:
            text = path.read_text(encoding="ascii")
            ast.parse(text)
        except (UnicodeDecodeError, SyntaxError, ValueError, OSError):
            continue
        if 400 <= len(text) <= LONGEST_MODULE and max(map(len, text.splitlines())) <= 200:
            yield {"kind": "library", "prompt": "", "text": text}
            limit -= len(text)


def source_records(folder: Path, seed: int) -> Iterator[Record]:
    """The text of every listed package in ``folder``, each up to its limit of megabytes; a line says what
    each gave. The documented functions of code come on top of that limit.
    """
    rng = random.Random(seed)
    seen: set[int] = set()
    for source, path in present(folder):
        if source.reader == "code":
            records = chain.from_iterable(_code(text, rng) for text in modules(path, seed))
        elif source.reader == "prose":
            records = _plain("docs", documents(path, seen))
        elif source.reader == "wordnet":
            records = wordnet(path, rng)
        else:
            read = {"factbook": factbook, "bible": bible, "novels": novels}[source.reader]
            texts = list(read(path))
            rng.shuffle(texts)
            records = _plain("facts", iter(texts))
        left, count = source.megabytes * 1e6, 0
        for record in records:
            if record["kind"] != "code":
                if left <= 0:
                    continue
                left -= len(record["text"])
            count += 1
            yield record
        used = source.megabytes - left / 1e6
        print(f"{source.name} {source.version} ({source.licence}): {count} texts, {used:.2f} MB", flush=True)


def _code(text: str, rng: random.Random) -> Iterator[Record]:
    yield from functions(text, rng)
    if len(text) <= LONGEST_MODULE:
        yield {"kind": "library", "prompt": "", "text": text}


def _plain(kind: str, texts: Iterator[str]) -> Iterator[Record]:
    return ({"kind": kind, "prompt": "", "text": text} for text in texts)


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
    return map(hash, zip(*(words[i:] for i in range(NGRAM)), strict=False))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--teacher", type=Path, nargs="+", required=True, help="folders with *.jsonl.xz records"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl and valid.jsonl")
    parser.add_argument("--sources", type=Path, help="folder that scripts.fetch_sources filled")
    parser.add_argument("--benchmarks", type=Path, help="folder with wheels whose benchmark text is removed")
    parser.add_argument("--problems", type=int, default=300_000, help="word problems to generate")
    parser.add_argument(
        "--code-bytes", type=int, default=9_000_000, help="bytes of Python's own library to add"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    for name in ("problems", "code_bytes"):
        if getattr(args, name) < 0:
            raise InputError(f"--{name.replace('_', '-')} must be 0 or more, not {getattr(args, name)}")
    if args.sources and not args.sources.is_dir():
        raise InputError(f"{args.sources} is no folder: --sources is one that scripts.fetch_sources filled")
    held_out = set(_strings(json.loads(PROMPTS.read_text())))
    forbidden = {ngram for prompt in held_out for ngram in _ngrams(prompt)}
    forbidden |= benchmark_ngrams(args.benchmarks) if args.benchmarks else set()
    records = list(teacher_records(args.teacher))
    print(f"{len(records)} teacher texts", flush=True)
    records += [{"kind": "maths", "prompt": p, "text": a} for p, a in problems(args.problems, args.seed)]
    print(f"{args.problems} word problems", flush=True)
    records += library_code(args.code_bytes, args.seed)
    if args.sources:
        records += source_records(args.sources, args.seed)

    random.Random(args.seed).shuffle(records)
    args.out.mkdir(parents=True, exist_ok=True)
    counts: dict[str, list[int]] = {}
    seen: set[int] = set()
    dropped = 0
    with open(args.out / "train.jsonl", "w") as train, open(args.out / "valid.jsonl", "w") as valid:
        for number, record in enumerate(records, 1):
            if number % 200_000 == 0:
                print(f"{number} of {len(records)} records", flush=True)
            whole = record["prompt"] + "\n" + record["text"]
            digest = _digest(whole)
            if digest in seen or record["prompt"] in held_out or not forbidden.isdisjoint(_ngrams(whole)):
                dropped += 1
                continue
            seen.add(digest)
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
    print(
        f"{dropped} records dropped: a held-out prompt, a text twice, or {NGRAM} words in a row shared with "
        "a benchmark or a held-out prompt"
    )


if __name__ == "__main__":
    run(main)
