"""Let a small pretrained model write texts for the pair to learn from, and keep the good ones.

Prompts are templates filled with everyday words (`scripts/pair/teacher_prompts.py`), each sampled once; what
is dropped, and why, is in `scripts/pair/teacher_filters.py`. Writes `part-XX.jsonl.xz` of {"kind", "prompt",
"text"} into --out as texts come, and at the end the percent that each rule dropped. Other texts need another
--seed and another --out.

    python -m scripts.write_teacher --target FOLDER --out FOLDER [--minutes M] [--prompts N]
    [--sources FOLDER]
"""

import argparse
import json
import lzma
import multiprocessing
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import numpy as np

from jddtree.chat import ChatTemplate, encode_chat, load_template
from jddtree.errors import InputError
from jddtree.load import load_pair
from jddtree.models.target import Target
from jddtree.tokenizer import Tokenizer, stop_ids
from scripts.pair.command import run
from scripts.pair.source_facts import everyday_nouns
from scripts.pair.sources import present
from scripts.pair.teacher_filters import Raw, judged
from scripts.pair.teacher_prompts import SHARES, SYSTEMS, Request, distinct_requests
from scripts.pair.writer import Style, Words, write_texts

# Temperature, min-p, penalty on used words, n-gram that must not come twice.
RULES = {
    "story": (0.7, 0.08, 0.6, 4),
    "explain": (0.7, 0.10, 0.5, 4),
    "chat": (0.7, 0.08, 0.4, 4),
    "code": (0.5, 0.10, 0.0, 12),
}
END_AFTER = (70, 120)  # tokens, after which the end becomes likelier
PART = 30_000  # records a file
SAME_LETTERS = 64
FUNCTION_WORDS = set(
    "that this with from they them their there then than what when where which while would could should "
    "have has had "
    "were been being will shall into onto over under about after before because very just also only "
    "some such your "
    "yours mine ours hers each every both here more most other does doing done said says like upon once "
    "even still "
    "never always again back down".split()
)
LETTERS = re.compile(r"[A-Za-z]+")


def word_table(tokenizer: Tokenizer, size: int) -> Words:
    """Which of the ``size`` ids are content words (whole ones: later parts of a word come with its first),
    and which start a word, a sign or a line.
    """
    pieces = [tokenizer.decode([token], skip_special=False) for token in range(size)]
    content = [
        (piece[:1] == " " or piece[:1].isupper())
        and bool(LETTERS.fullmatch(piece.strip()))
        and _is_content(piece.strip().lower())
        for piece in pieces
    ]
    starts = [not piece[:1].isalnum() and piece[:1] not in ("'", "\ufffd", "") for piece in pieces]
    return Words(np.array(content), np.array(starts))


def _is_content(word: str) -> bool:
    return len(word) > 3 and word not in FUNCTION_WORDS


def chat_frames(tokenizer: Tokenizer, template: ChatTemplate) -> dict[str, tuple[list[int], list[int]]]:
    """The ids before and after the user's words, by system prompt: a template is slow to run for each one."""
    frames = {}
    for system in SYSTEMS:
        one, two = (
            encode_chat(
                tokenizer,
                template,
                [{"role": "system", "content": system}, {"role": "user", "content": content}],
                False,
            )
            for content in ("A", "B")
        )
        at = next(i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
        frames[system] = one[:at], one[at + 1 :]
    return frames


def write_part(path: Path, records: list[dict[str, str]]) -> None:
    """Pack records into one file."""
    with lzma.open(path, "wt", encoding="ascii") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def judge_all(texts: list[Raw]) -> list[tuple[str, str]]:
    """`judged` of each text."""
    return [judged(text) for text in texts]


class Kept:
    """The texts that passed, as they come back from the pool, and how many of each kind a rule dropped."""

    def __init__(self, out: Path, pool: ProcessPoolExecutor):
        self._out, self._pool = out, pool
        self._records: list[dict[str, str]] = []
        self._seen: set[tuple[str, str]] = set()
        self._parts: list[Future[None]] = []
        self.raw: Counter[str] = Counter()
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.letters = 0

    def add(self, texts: list[Raw], verdicts: list[tuple[str, str]]) -> None:
        for raw, (text, rule) in zip(texts, verdicts, strict=True):
            self.raw[raw.kind] += 1
            start = raw.kind, text[:SAME_LETTERS].lower()
            if not rule and start in self._seen:
                rule = f"same first {SAME_LETTERS} letters as another text"
            if rule:
                self.dropped[raw.kind, rule] += 1
                continue
            self._seen.add(start)
            self.letters += len(text)
            self._records.append({"kind": raw.kind, "prompt": raw.prompt, "text": text})
        if len(self._records) >= PART:
            self.flush()

    def judge(self, texts: list[Raw]) -> Future[list[tuple[str, str]]]:
        """`judge_all` in the pool."""
        return self._pool.submit(judge_all, texts)

    def flush(self) -> None:
        """Write what is there as the next part."""
        if self._records:
            random.Random(len(self._parts)).shuffle(self._records)
            path = self._out / f"part-{len(self._parts):02}.jsonl.xz"
            self._parts.append(self._pool.submit(write_part, path, self._records))
            self._records = []

    def finish(self) -> None:
        """Write the rest, and wait for all files."""
        self.flush()
        for part in self._parts:
            part.result()

    def report(self) -> str:
        """Percent of each kind that a rule dropped, as a table."""
        kinds = list(SHARES)
        lines = ["| rule | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
        for rule in sorted({rule for _, rule in self.dropped}, key=self._total, reverse=True):
            lines.append(f"| {rule} | {self._row([self.dropped[kind, rule] for kind in kinds])} |")
        left = [
            self.raw[kind] - sum(self.dropped[k, r] for k, r in self.dropped if k == kind) for kind in kinds
        ]
        lines.append(f"| kept | {self._row(left)} |")
        lines.append("| texts | " + " | ".join(str(self.raw[kind]) for kind in kinds) + " |")
        return "\n".join([*lines, f"{sum(left)} texts kept, {self.letters / 1e6:.1f} MB"])

    def _total(self, rule: str) -> int:
        return sum(count for (_, name), count in self.dropped.items() if name == rule)

    def _row(self, counts: list[int]) -> str:
        kinds = list(SHARES)
        return " | ".join(
            f"{100 * count / max(1, self.raw[kind]):.1f}" for count, kind in zip(counts, kinds, strict=True)
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="folder of the model that writes")
    parser.add_argument("--out", type=Path, required=True, help="folder for part-XX.jsonl.xz")
    parser.add_argument("--minutes", type=float, default=3.0, help="no new batch after so much writing")
    parser.add_argument("--prompts", type=int, default=240_000, help="most prompts")
    parser.add_argument("--rows", type=int, default=4096, help="texts written at once")
    parser.add_argument("--slots", type=int, default=320, help="longest prompt and text, tokens")
    parser.add_argument(
        "--sources", type=Path, help="packages of scripts.fetch_sources: WordNet's nouns are used"
    )
    parser.add_argument("--workers", type=int, default=8, help="processes that make prompts and judge texts")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--cache-dir", type=Path, default=Path.home() / ".cache" / "jddtree")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    if any(args.out.glob("*.jsonl.xz")):
        raise InputError(f"{args.out} holds texts already: name another folder with --out")
    args.out.mkdir(parents=True, exist_ok=True)
    nouns: tuple[str, ...] = ()
    if args.sources:
        nouns = tuple(
            noun
            for source, path in present(args.sources)
            if source.reader == "wordnet"
            for noun in everyday_nouns(path)
        )

    start = time.perf_counter()

    def say(line: str) -> None:
        print(f"{time.perf_counter() - start:6.1f} s  {line}", flush=True)

    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool:
        share = -(-args.prompts // args.workers)
        seeds = [args.seed * 1000 + worker for worker in range(args.workers)]
        made = [pool.submit(distinct_requests, share, seed, nouns) for seed in seeds]
        pair = load_pair(args.target, None, dtype=args.dtype, cache_dir=args.cache_dir, say=say)
        template = load_template(pair.checkpoint.folder)
        if pair.tokenizer is None or template is None:
            raise InputError(f"{args.target} has no tokenizer or no chat template")
        requests = list({request.prompt: request for some in made for request in some.result()}.values())
        random.Random(args.seed).shuffle(requests)
        requests = requests[: args.prompts]
        say(f"{len(requests)} prompts")
        kept = Kept(args.out, pool)
        frames = chat_frames(pair.tokenizer, template)
        stops = stop_ids(pair.checkpoint.config, pair.checkpoint.generation_config, pair.tokenizer)
        _write(args, pair.target, pair.tokenizer, frames, stops, requests, kept, say)
        kept.finish()
    print(kept.report())


def _write(
    args: argparse.Namespace,
    target: Target,
    tokenizer: Tokenizer,
    frames: dict[str, tuple[list[int], list[int]]],
    stops: list[int],
    requests: list[Request],
    kept: Kept,
    say: Callable[[str], None],
) -> None:
    """Write texts until the time is over; they are judged in the pool while the next batch is written."""
    prompts, styles = [], []
    for request in requests:
        before, after = frames[request.system]
        prompts.append([*before, *tokenizer.encode(request.prompt, specials=False), *after])
        _, min_p, penalty, ngram = RULES[request.kind]
        opening = tuple(tokenizer.encode(request.opening, specials=False))
        styles.append(Style(min_p, penalty, ngram, END_AFTER, opening))
    texts = write_texts(
        target,
        prompts,
        style=styles,
        temperatures=[RULES[request.kind][0] for request in requests],
        slots=args.slots,
        rows=args.rows,
        stop_ids=stops,
        seed=args.seed,
        say=say,
        words=word_table(tokenizer, target.config.vocab_size),
    )
    judging: list[tuple[list[Raw], Future]] = []
    batch: list[Raw] = []
    begin = 0.0
    for text in texts:
        begin = begin or time.perf_counter()  # compiling is not writing
        request = requests[text.index]
        batch.append(
            Raw(
                request.kind,
                request.prompt,
                tokenizer.decode(text.ids),
                len(text.ids),
                text.logprob,
                text.stop is not None,
            )
        )
        if len(batch) == min(args.rows, len(requests)):
            judging.append((batch, kept.judge(batch)))
            batch = []
            while judging and judging[0][1].done():
                some, verdicts = judging.pop(0)
                kept.add(some, verdicts.result())
            if time.perf_counter() - begin > 60 * args.minutes:
                break
    if batch:
        judging.append((batch, kept.judge(batch)))
    for some, verdicts in judging:
        kept.add(some, verdicts.result())


if __name__ == "__main__":
    run(main)
