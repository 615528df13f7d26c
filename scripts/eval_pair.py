"""Measure a pair in the real decoder: what chains and trees commit a round, by kind of prompt and by depth,
and how good the texts are.

    python -m scripts.eval_pair [--target DIR --drafter DIR] [--prompts humaneval gsm8k] [--budgets 16]

Prompts are suites: "held-out" (`scripts/pair/prompts.json`, in no training text), those of `jddtree.sweep`,
and JSON lines as for `jddtree.generate`. In "held-out", "maths" is of trained templates and "problems" are of
other forms. The total is of stories, explanations, chat and code alone. "slots right" is how often each slot
of a chain's rounds equals the text, "from everywhere" the same for drafts behind every token of the text:
rounds begin where drafts were wrong before, and so at the harder places. "distinct" is the share of different
token 4-grams in a text, so that loops do not pass for success. "right" counts the word problems' right
answers. Temperature 0 is greedy; at others, a prompt and a seed give the same text with every method. Exit
status 1 if a chain or tree gives another text than plain decoding, in float32, and no tie explains it.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import batched
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jddtree.decoder import Decoder, Task, slots_for
from jddtree.engine import Engine, default_cache_dir
from jddtree.errors import InputError
from jddtree.finish import Generation
from jddtree.load import bundled_pair, pair_places
from jddtree.prompts import Wishes
from jddtree.sampling import GREEDY, Mode, Sample
from jddtree.state import Method, Options
from jddtree.sweep.suites import SUITES, Problem, read_suite, tasks_of
from scripts.pair.acceptance import (
    Case,
    Results,
    depths_of,
    differences,
    distinct_of,
    markdown,
    measure,
    rows_of,
)
from scripts.pair.command import run
from scripts.pair.documents import Documents
from scripts.pair.everywhere import drafts_everywhere
from scripts.pair.perplexity import perplexity_by_kind
from scripts.pair.publish import write_json
from scripts.pair.section import replace_section, require_section

HELD_OUT = "held-out"
PROMPTS = Path(__file__).parent / "pair" / "prompts.json"
ANSWERS = Path(__file__).parent / "pair" / "prompt_answers.json"


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    problems = read_problems(args.prompts, Wishes(max_new_tokens=args.max_new_tokens), args.limit)
    held = Documents.load_part(args.data, "valid") if args.data else None
    engine = Engine.load(args.target, args.drafter, dtype=args.dtype, cache_dir=args.cache_dir)
    pair, asked = engine.pair, tasks_of(problems, engine)
    tasks = {
        Case(problem.kind, str(problem.prompt), temperature, seed): replace(
            task, policy=Sample(temperature, seed=seed) if temperature else GREEDY
        )
        for temperature in args.temperatures
        for problem, task in zip(problems, asked, strict=True)
        for seed in range(args.seeds if temperature else 1)
    }
    rows = args.rows or (16 if jax.default_backend() == "cpu" else 128)
    results = write_texts(engine, tasks, args.budgets, rows)
    texts = {
        case: pair.tokenizer.decode(done.output_ids) if pair.tokenizer else str(done.output_ids)
        for case, done in results["plain"].items()
    }
    written = [(tasks[case].prompt, done.output_ids) for case, done in results["plain"].items()]
    assert pair.drafter is not None
    drafts = drafts_everywhere(pair.target, pair.drafter, written)
    everywhere = dict(zip(results["plain"], drafts, strict=True))
    report: dict[str, Any] = {
        "target": args.name,
        "device": jax.devices()[0].device_kind,
        "dtype": pair.dtype,
        "max_new_tokens": args.max_new_tokens,
        "seeds": args.seeds,
        "temperatures": measure(
            results, texts, json.loads(args.answers.read_text(encoding="utf-8")), everywhere
        ),
        "perplexity": {},
        "different": differences(results, pair.dtype),
    }
    if held is not None:
        report["perplexity"] = perplexity_by_kind(
            pair.target,
            held,
            texts=args.perplexity_texts,
            rows=16,
            width=512,
            dtype=jnp.dtype(pair.dtype),
        )
    for temperature, kinds in report["temperatures"].items():
        show(*rows_of(kinds, report["perplexity"]), f"temperature {temperature}, {summary(report)}")
        show(*depths_of(kinds), "rounds that reached depth 1, 2, ...")
    if args.json:
        report["texts"] = [
            vars(case) | {"text": text, "distinct": distinct_of(results["plain"][case])}
            for case, text in texts.items()
        ]
        write_json(args.json, report)
    if args.table:
        replace_section(args.table, f"eval_pair {args.name}", tables(report))
    unexplained = [one for one in report["different"] if not one["tie"]]
    if report["different"]:
        print(
            f"{len(report['different'])} texts differ from plain decoding, {len(unexplained)} of them "
            f"without a tie: {(unexplained or report['different'])[:3]}"
        )
    if unexplained and pair.dtype == "float32":
        raise SystemExit(1)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The flags. Raises InputError."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", type=Path, help="a folder, a GGUF file, or smollm2; default: the bundled pair")
    add("--drafter", type=Path, help="default: the target's own")
    add(
        "--prompts",
        nargs="+",
        default=[HELD_OUT],
        metavar="SUITE",
        help=f"of {', '.join((HELD_OUT, *SUITES))}, and JSONL files; default: {HELD_OUT}",
    )
    add(
        "--limit",
        type=int,
        metavar="N",
        help=f"the first N prompts of each suite, of each kind of {HELD_OUT}",
    )
    add("--answers", type=Path, default=ANSWERS, help="JSON object: prompt -> the right number")
    add("--budgets", type=int, nargs="*", default=[4, 8, 16, 32, 64], help="tree sizes, beside the chain")
    add("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    add("--seeds", type=int, default=2, help="texts a prompt at temperatures above 0")
    add("--max-new-tokens", type=int, default=128)
    add("--rows", type=int, help="texts written at once; default: 16 on a CPU, else 128")
    add("--data", type=Path, nargs="+", help="folders with valid.npz.xz, encoded for this target: perplexity")
    add("--perplexity-texts", type=int, default=64, help="held-out documents a kind, of at most 512 ids")
    add("--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU")
    add("--cache-dir", type=Path, default=default_cache_dir())
    add("--json", type=Path, help="write figures and texts")
    add("--table", type=Path, help="Markdown file: write the tables between its `eval_pair TARGET` lines")
    args = parser.parse_args(arguments)
    if any(budget < 1 for budget in args.budgets):
        raise InputError(f"--budgets must be 1 or more, not {min(args.budgets)}")
    for name in ("limit", "seeds", "max_new_tokens", "rows"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be 1 or more, not {value}")
    if args.drafter is not None and args.target is None:
        raise InputError("--drafter needs the --target that it was trained for")
    if pair_places(args.target, args.drafter)[1] is None:
        raise InputError(f"there is no drafter for {args.target}: give --drafter")
    args.name = args.target.name if args.target else bundled_pair()[0].name
    if args.table:
        require_section(args.table, f"eval_pair {args.name}")
    return args


def read_problems(suites: Sequence[str], wishes: Wishes, limit: int | None) -> list[Problem]:
    """The prompts of all suites. Raises InputError."""
    found = []
    for suite in suites:
        if suite == HELD_OUT:
            by_kind = json.loads(PROMPTS.read_text(encoding="utf-8"))
            found += [
                Problem(kind, prompt, wishes, repr(prompt))
                for kind, prompts in by_kind.items()
                for prompt in prompts[:limit]
            ]
        else:
            found += read_suite(suite, wishes, limit)
    return found


def write_texts(engine: Engine, tasks: dict[Case, Task], budgets: Sequence[int], rows: int) -> Results:
    """Every case's text by plain decoding, by the chain, and by trees of every budget; ``rows`` at once.

    All trees use the programs of the largest, which may verify fewer nodes than it is compiled for.
    """
    pair = engine.pair
    tree = Method.tree(pair.block_size, max(budgets, default=0))
    ways = {"plain": (Method.plain(), None), "chain": (Method.chain(pair.block_size), None)}
    ways |= {f"tree({budget})": (tree, budget) for budget in sorted(budgets)}
    mode = Mode.of([task.policy for task in tasks.values()])
    limit = pair.target.config.max_position
    slots = slots_for(max(task.tokens(limit) for task in tasks.values()))

    def compiled(method: Method) -> Decoder:
        decoder = Decoder(
            pair.target,
            pair.drafter,
            method,
            rows=rows,
            slots=slots,
            dtype=jnp.dtype(pair.dtype),
            options=Options(mode),
        )
        decoder.compile_for(list(tasks.values()))
        return decoder

    # On a GPU compiling is most of the time, and each program takes one core of the host.
    methods = list(dict.fromkeys(method for method, _ in ways.values()))
    with ThreadPoolExecutor(len(methods)) as pool:
        decoders = dict(zip(methods, pool.map(compiled, methods), strict=True))
    found: dict[str, dict[Case, Generation]] = {}
    for name, (method, budget) in ways.items():
        found[name] = {}
        for batch in track(list(batched(tasks, rows)), name, console=Console(stderr=True)):
            *_, done = decoders[method].decode([replace(tasks[case], budget=budget) for case in batch])
            found[name] |= dict(zip(batch, done, strict=True))
    return found


def show(titles: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """A table on the terminal."""
    table = Table(*titles, title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=150).print(table)


def summary(report: dict[str, Any]) -> str:
    """On what, and how, the figures were measured."""
    return (
        f"{report['device']}, {report['dtype']}, {report['max_new_tokens']} tokens, texts a prompt "
        f"where sampled: {report['seeds']}"
    )


def tables(report: dict[str, Any]) -> str:
    """The figures in Markdown."""
    parts = [f"Measured on: {summary(report)}."]
    if not report["different"]:
        parts[0] += " Every text equals plain decoding's."
    for temperature, kinds in report["temperatures"].items():
        parts.append(f"Temperature {temperature}:")
        parts.append(markdown(*rows_of(kinds, report["perplexity"])))
        parts.append("Share of rounds whose accepted path reached depth 1, 2, ...:")
        parts.append(markdown(*depths_of(kinds)))
    return "\n\n".join(parts)


if __name__ == "__main__":
    run(main)
