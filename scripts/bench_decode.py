"""Time plain decoding, chains and trees of one pair in one process, each beside its exactness line.

    python scripts/bench_decode.py --budgets 4 8 16 32 64 --json FILE

Every method decodes the same prompts, one row, greedily, all compiled beforehand. Repetitions are
interleaved, and a method's time is the median over repetitions of the rounds' seconds (prefill apart). Plain
decoding is the same compiled loop with nothing drafted.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jddtree.chat import encode_chat, load_template
from jddtree.decoder import Decoder, Task, slots_for
from jddtree.exactness import TIE_LIMITS, Exactness, compare
from jddtree.finish import Generation
from jddtree.load import Pair, load_pair, pair_places
from jddtree.state import Method
from jddtree.tokenizer import stop_ids

PROMPTS = Path(__file__).parent / "pair" / "prompts.json"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", type=Path, help="default: the bundled pair")
    add("--drafter", type=Path)
    add("--budgets", type=int, nargs="*", default=[4, 8, 16, 32, 64], help="tree sizes")
    add("--max-new-tokens", type=int, default=128)
    add("--prompts", type=int, default=8, help="how many prompts, taken in turn from each kind")
    add("--repetitions", type=int, default=3)
    add("--dtype", choices=("float32", "bfloat16"))
    add("--cache-dir", type=Path, default=Path.home() / ".cache" / "jddtree")
    add("--json", type=Path, help="write the table")
    return parser.parse_args()


def prompts_of(pair: Pair, count: int) -> list[list[int]]:
    """Chat prompts in turn from each kind, as ids."""
    by_kind = json.loads(PROMPTS.read_text(encoding="utf-8"))
    texts = [text for kinds in zip(*by_kind.values(), strict=False) for text in kinds][:count]
    template = load_template(pair.checkpoint.folder)
    assert pair.tokenizer is not None and template is not None
    return [
        encode_chat(pair.tokenizer, template, [{"role": "user", "content": text}], False) for text in texts
    ]


def timed(decoder: Decoder, task: Task) -> tuple[Generation, float]:
    """Decode once; the seconds of the rounds."""
    growing = decoder.decode([task])
    rows = next(growing)
    began = time.perf_counter()
    for rows in growing:  # noqa: B007
        pass
    return rows[0], time.perf_counter() - began


def main() -> None:
    flags = parse()
    target, drafter = pair_places(flags.target, flags.drafter)
    pair = load_pair(
        target,
        drafter,
        dtype=flags.dtype,
        cache_dir=flags.cache_dir,
        say=print,
    )
    if pair.dtype == "float32":
        jax.config.update("jax_default_matmul_precision", "highest")
    prompts = prompts_of(pair, flags.prompts)
    checkpoint = pair.checkpoint
    stops = stop_ids(checkpoint.config, checkpoint.generation_config, pair.tokenizer)
    tasks = [Task(prompt, max_new=flags.max_new_tokens, stop_ids=stops) for prompt in prompts]
    methods = {"ar": Method.plain(), "chain": Method.chain(pair.block_size)}
    methods |= {f"tree({budget})": Method.tree(pair.block_size, budget) for budget in flags.budgets}
    slots = slots_for(max(map(len, prompts)) + flags.max_new_tokens)
    decoders = {}
    for name, method in track(methods.items(), "compiling"):
        decoders[name] = Decoder(
            pair.target, pair.drafter, method, rows=1, slots=slots, dtype=jnp.dtype(pair.dtype)
        )
        decoders[name].compile_for(tasks)
    plain = [timed(decoders["ar"], task)[0] for task in tasks]
    times: dict[str, list[float]] = {name: [] for name in methods}
    results: dict[str, list[Generation]] = {}
    for repetition in track(range(flags.repetitions + 1), "decoding"):
        for name, decoder in decoders.items():
            runs = [timed(decoder, task) for task in tasks]
            results[name] = [generation for generation, _ in runs]
            if repetition:  # the first is a warm-up
                times[name].append(sum(seconds for _, seconds in runs))
    rows = [row(name, results[name], times[name], plain, decoders[name]) for name in methods]
    for entry in rows:
        entry["speed_up"] = entry["tokens_per_second"] / rows[0]["tokens_per_second"]
    show(rows, pair.dtype)
    if flags.json:
        about = {
            "device": jax.devices()[0].device_kind,
            "jax": jax.__version__,
            "dtype": pair.dtype,
            "prompts": len(prompts),
            "max_new_tokens": flags.max_new_tokens,
            "repetitions": flags.repetitions,
        }
        flags.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def row(
    name: str, runs: list[Generation], times: list[float], plain: list[Generation], decoder: Decoder
) -> dict:
    """One method's figures over all prompts."""
    rounds = [length for run in runs for length in run.acceptance_lengths]
    tokens = sum(len(run.output_ids) - 1 for run in runs)
    seconds = statistics.median(times)
    checks = [compare(a.output_ids, b.output_ids, b.margins) for a, b in zip(runs, plain, strict=True)]
    return {
        "method": name,
        "tokens_per_second": tokens / seconds,
        "round_ms": 1e3 * seconds / len(rounds),
        "committed_per_round": sum(rounds) / len(rounds),
        "spread": [tokens / max(times), tokens / min(times)],
        "compile_seconds": decoder.compile_seconds,
        "equal": sum(bool(check.equal) for check in checks),
        "differing": [_difference(check) for check in checks if not check.equal],
    }


def _difference(check: Exactness) -> dict:
    return {"at": check.first_divergence, "gap": check.gap}


def show(rows: list[dict], dtype: str) -> None:
    table = Table(title=f"{jax.devices()[0].device_kind}, {dtype}, jax {jax.__version__}")
    for title in ("method", "tokens/s", "x plain", "ms a round", "committed a round", "equal to plain"):
        table.add_column(title, justify="right")
    for entry in rows:
        gaps = [d["gap"] for d in entry["differing"]]
        ties = sum(gap is not None and gap < TIE_LIMITS[dtype] for gap in gaps)
        total = entry["equal"] + len(gaps)
        exact = f"{entry['equal']} of {total}" + (f", {ties} ties, {len(gaps) - ties} bugs" if gaps else "")
        table.add_row(
            entry["method"],
            f"{entry['tokens_per_second']:.1f}",
            f"{entry['speed_up']:.2f}",
            f"{entry['round_ms']:.2f}",
            f"{entry['committed_per_round']:.2f}",
            exact,
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
