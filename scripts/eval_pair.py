"""Measure a pair in the real decoder on held-out prompts, greedily: what chains and trees commit a round, by
kind.

    python -m scripts.eval_pair [--target DIR --drafter DIR] [--budgets 16] [--json FILE]

The prompts (`scripts/pair/prompts.json`) are in no training text. "maths" is of the trained templates and
counts in no total. "distinct" is the share of different token 4-grams in a text, so that loops do not pass
for success. Exit status 1 if a chain or tree gives another text than plain decoding, in float32.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jddtree.chat import encode_chat, load_template
from jddtree.decoder import Decoder, Task, slots_for
from jddtree.errors import InputError
from jddtree.exactness import compare
from jddtree.finish import Generation
from jddtree.load import Pair, bundled_pair, load_pair
from jddtree.state import Method
from jddtree.tokenizer import stop_ids
from scripts.pair.command import run
from scripts.pair.distinct import distinct_share
from scripts.pair.publish import write_json

PROMPTS = Path(__file__).parent / "pair" / "prompts.json"
APART = ("maths",)  # kinds in no total


def chat_ids(pair: Pair, text: str) -> list[int]:
    """A user's message as ids, thinking off. Raises InputError without a tokenizer and template."""
    template = load_template(pair.checkpoint.folder)
    if pair.tokenizer is None or template is None:
        raise InputError(f"{pair.checkpoint.folder} has no tokenizer or no chat template")
    return encode_chat(pair.tokenizer, template, [{"role": "user", "content": text}], False)


def slots_right(generation: Generation) -> list[tuple[int, int]]:
    """For each slot of a chain's drafts: how often it equals the text, and how often there is text."""
    found: list[list[int]] = []
    at = 0
    for round_ in generation.trace:
        for slot, token in enumerate(round_["tokens"][1:], start=1):
            if slot > len(found):
                found.append([0, 0])
            if at + slot < len(generation.output_ids):
                found[slot - 1][0] += token == generation.output_ids[at + slot]
                found[slot - 1][1] += 1
        at += len(round_["accepted"])
    return [(right, count) for right, count in found]


def committed(generations: Sequence[Generation]) -> float | None:
    """Total committed over total rounds."""
    rounds = [length for generation in generations for length in generation.acceptance_lengths]
    return sum(rounds) / len(rounds) if rounds else None


def share_by_slot(generations: Sequence[Generation]) -> list[float]:
    """Share right of every slot, over all rounds of all texts."""
    totals: list[list[int]] = []
    for generation in generations:
        for slot, (right, count) in enumerate(slots_right(generation)):
            if slot == len(totals):
                totals.append([0, 0])
            totals[slot][0] += right
            totals[slot][1] += count
    return [right / max(count, 1) for right, count in totals]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, help="default: the bundled pair")
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSON object: kind -> list of prompts")
    parser.add_argument("--budgets", type=int, nargs="*", default=[16], help="tree sizes, beside the chain")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU")
    parser.add_argument("--cache-dir", type=Path, default=Path.home() / ".cache" / "jddtree")
    parser.add_argument("--json", type=Path, help="write figures and texts")
    args = parser.parse_args(arguments)
    if (args.target is None) != (args.drafter is None):
        raise InputError("pass both --target and --drafter, or neither")
    folders = bundled_pair() if args.target is None else (args.target, args.drafter)
    pair = load_pair(*folders, dtype=args.dtype, cache_dir=args.cache_dir, say=print)
    if pair.dtype == "float32":
        jax.config.update("jax_default_matmul_precision", "highest")

    by_kind: dict[str, list[str]] = json.loads(args.prompts.read_text(encoding="utf-8"))
    prompts = {text: chat_ids(pair, text) for texts in by_kind.values() for text in texts}
    stops = stop_ids(pair.checkpoint.config, pair.checkpoint.generation_config, pair.tokenizer)
    methods = {"plain": Method.plain(), "chain": Method.chain(pair.block_size)}
    methods |= {f"tree({budget})": Method.tree(pair.block_size, budget) for budget in args.budgets}
    slots = slots_for(max(map(len, prompts.values())) + args.max_new_tokens)
    results: dict[str, dict[str, Generation]] = {}
    for name, method in methods.items():
        decoder = Decoder(pair.target, pair.drafter, method, rows=1, slots=slots, dtype=jnp.dtype(pair.dtype))
        results[name] = {}
        for text, ids in track(prompts.items(), name, console=Console(stderr=True)):
            *_, rows = decoder.decode([Task(ids, max_new=args.max_new_tokens, stop_ids=stops)])
            results[name][text] = rows[0]

    report = measure(by_kind, results)
    report |= {
        "dtype": pair.dtype,
        "device": jax.devices()[0].device_kind,
        "max_new_tokens": args.max_new_tokens,
    }
    if args.json and pair.tokenizer is not None:
        report["texts"] = {text: pair.tokenizer.decode(g.output_ids) for text, g in results["plain"].items()}
        write_json(args.json, report)
    show(report)
    if report["different"]:
        print(f"{len(report['different'])} texts differ from plain decoding: {report['different'][:3]}")
        if pair.dtype == "float32":
            raise SystemExit(1)


def measure(by_kind: dict[str, list[str]], results: dict[str, dict[str, Generation]]) -> dict:
    """All figures: a row a kind and one for the total, and which texts differ from plain decoding."""
    groups = dict(by_kind)
    groups["total"] = [text for kind, texts in by_kind.items() if kind not in APART for text in texts]
    kinds = {}
    for kind, texts in groups.items():
        plain = [results["plain"][text] for text in texts]
        chains = [results["chain"][text] for text in texts]
        kinds[kind] = {
            "texts": len(texts),
            "committed": {
                name: committed([by_text[text] for text in texts])
                for name, by_text in results.items()
                if name != "plain"
            },
            "slots": share_by_slot(chains),
            "distinct": sum(distinct_share(generation.output_ids) for generation in plain) / len(texts),
            "stopped": sum(generation.finish_reason == "stop" for generation in plain),
        }
    different = [
        {"method": name, "prompt": text, "at": check.first_divergence, "gap": check.gap}
        for name, by_text in results.items()
        for text, generation in by_text.items()
        if not (check := _against_plain(generation, results["plain"][text])).equal
    ]
    return {"kinds": kinds, "different": different}


def _against_plain(generation: Generation, plain: Generation):
    return compare(generation.output_ids, plain.output_ids, plain.margins)


def show(report: dict) -> None:
    """Print the table."""
    names = list(report["kinds"]["total"]["committed"])
    table = Table(
        title=f"{report['device']}, {report['dtype']}, {report['max_new_tokens']} tokens, temperature 0"
    )
    for title in ("kind", "texts", *names, "slots right", "distinct", "stopped"):
        table.add_column(title, justify="left" if title == "kind" else "right")
    for kind, row in report["kinds"].items():
        figures = [row["committed"][name] for name in names]
        slots = " ".join(f"{share:.2f}".lstrip("0") for share in row["slots"])
        table.add_row(
            kind,
            str(row["texts"]),
            *("-" if figure is None else f"{figure:.2f}" for figure in figures),
            slots,
            f"{row['distinct']:.2f}",
            str(row["stopped"]),
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    run(main)
