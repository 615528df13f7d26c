"""``python -m jddtree.compare humaneval``: the same problems solved plainly and speculatively, and scored.

A problem is solved if its own tests pass. Each program runs in a process of its own with limits on time,
memory and what it may write; it is still the model's code, so that it runs only when asked for.
"""

import argparse
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from jddtree.command import json_writer, say
from jddtree.compare.runs import verdict
from jddtree.decoder import Task
from jddtree.engine import DEFAULT_BUDGET, Engine
from jddtree.errors import InputError
from jddtree.exactness import compare
from jddtree.finish import Generation
from jddtree.load import pair_places
from jddtree.prompts import Wishes, batches
from jddtree.state import Method
from jddtree.sweep.suites import read_entries, read_suite, tasks_of

LIMITS = """\
import resource as _r
for _limit, _most in ((_r.RLIMIT_AS, 1 << 30), (_r.RLIMIT_FSIZE, 1 << 20), (_r.RLIMIT_CORE, 0)):
    _r.setrlimit(_limit, (_most, _most))
del _r, _limit, _most
"""
"""What every program begins with: a GiB of memory, a MiB of each file (its output is one), no core dump."""

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def add_flags(command: argparse.ArgumentParser, path: Any) -> None:
    """The flags of this comparison; ``path`` reads a folder's name."""
    add = command.add_argument
    add("--target", type=path, metavar="DIR", help="as for generate (default: bundled)")
    add("--drafter", type=path, metavar="DIR", help="DFlash drafter folder (default: the target's own)")
    add(
        "--budget",
        type=int,
        default=DEFAULT_BUDGET,
        metavar="N",
        help="nodes of a tree (default %(default)s)",
    )
    add("--limit", type=int, metavar="N", help="the first N problems (default: all 164)")
    add("--max-new-tokens", type=int, default=384, metavar="N", help="tokens of an answer (default 384)")
    add("--rows", type=int, default=8, metavar="B", help="answers written at a time (default 8)")
    add("--seconds", type=float, default=5.0, metavar="S", help="that a program may take (default 5)")
    add("--run-code", action="store_true", help="agree to run the Python that the model writes")
    add("--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU, else bfloat16")
    add("--json", metavar="FILE", help="also write answers and scores as JSON; - means standard output alone")


def main(flags: argparse.Namespace) -> int:
    """Answer, compare, score, and return 0, or 1 for a bug: texts that differ by more than rounding, or equal
    texts with other scores. Raises InputError.
    """
    if not flags.run_code:
        raise InputError("this runs Python that the model wrote: add --run-code if this machine may")
    for name in ("limit", "max_new_tokens", "rows", "budget", "seconds"):
        value = getattr(flags, name)
        if value is not None and value <= 0:
            raise InputError(f"--{name.replace('_', '-')} must be above 0, not {value}")
    if pair_places(flags.target, flags.drafter)[1] is None:
        raise InputError(f"there is no drafter for {flags.target}: give --drafter")
    write_json = json_writer(flags.json)
    problems = read_suite("humaneval", Wishes(max_new_tokens=flags.max_new_tokens), flags.limit)
    entries = read_entries("humaneval")[: len(problems)]
    engine = Engine.load(flags.target, flags.drafter, budget=flags.budget, dtype=flags.dtype, say=say)
    tasks = tasks_of(problems, engine)
    plain, tree = (answers(engine, tasks, method, flags.rows) for method in (Method.plain(), engine.method))
    checks = [
        compare(ours.output_ids, theirs.output_ids, theirs.margins)
        for ours, theirs in zip(tree, plain, strict=True)
    ]
    scores = [
        [
            passes(entry, answer.text or "", flags.seconds)
            for entry, answer in zip(
                track(entries, "running", console=Console(stderr=True)), found, strict=True
            )
        ]
        for found in (plain, tree)
    ]
    dtype = engine.pair.dtype
    said = verdict(checks, dtype)
    other = [check.equal and a != b for check, a, b in zip(checks, *scores, strict=True)]
    if any(other):
        said = f"bug: {sum(other)} of {len(checks)} equal texts have other scores"
    write_json(
        {
            "verdict": said,
            "passed": {"ar": sum(scores[0]), "tree": sum(scores[1])},
            "problems": [
                {
                    "task_id": entry["task_id"],
                    "equal": check.equal,
                    "ar": one,
                    "tree": two,
                    "text": answer.text,
                }
                for entry, check, one, two, answer in zip(entries, checks, *scores, tree, strict=True)
            ],
        }
    )
    if flags.json != "-":
        for number, check in enumerate(checks):
            if not check.equal:
                print(f"{entries[number]['task_id']}: {check.verdict(dtype)}")
        print(f"passed: ar {sum(scores[0])}, tree({flags.budget}) {sum(scores[1])}, of {len(entries)}")
        print(said)
    return 1 if said.startswith("bug") else 0


def answers(engine: Engine, tasks: Sequence[Task], method: Method, rows: int) -> list[Generation]:
    """The tasks' texts, ``rows`` at a time."""
    found: list[Generation] = []
    rows = min(rows, len(tasks))
    for group in track(batches(tasks, rows), method.name, console=Console(stderr=True)):
        *_, results = engine.decoder(group, method=method, rows=rows).decode(group, engine.pair.tokenizer)
        found += results
    return found


def program(entry: dict[str, Any], answer: str) -> str:
    """An answer as a module that defines the problem's function: its first code block, or all of it. One that
    only goes on with the problem's text is put after it.
    """
    block = _BLOCK.search(answer)
    code = block[1] if block else answer
    defines = re.search(rf"^def {re.escape(entry['entry_point'])}\b", code, re.MULTILINE)
    # The problem's imports come first all the same.
    head = entry["prompt"].split(f"def {entry['entry_point']}")[0] if defines else entry["prompt"]
    return f"{head}{code}\n"


def passes(entry: dict[str, Any], answer: str, seconds: float) -> bool:
    """Whether the problem's tests run to their end on an answer."""
    # A program that ends early must not look like one that passed.
    end = secrets.token_hex(8)
    source = f"{program(entry, answer)}\n{entry['test']}\ncheck({entry['entry_point']})\nprint({end!r})\n"
    with tempfile.TemporaryDirectory() as folder:
        file, output = Path(folder, "answer.py"), Path(folder, "output")
        file.write_text(LIMITS + source, encoding="utf-8")
        with output.open("wb") as out:
            ran = subprocess.Popen(
                [sys.executable, "-I", "-B", str(file)],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
            try:
                status = ran.wait(seconds)
            except subprocess.TimeoutExpired:
                return False
            finally:
                # Whatever it started goes too.
                with suppress(ProcessLookupError):
                    os.killpg(ran.pid, signal.SIGKILL)
                ran.wait()
        return status == 0 and output.read_bytes().endswith(f"{end}\n".encode())
