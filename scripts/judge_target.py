"""Let a published target answer held-out prompts: does it stop, loop, get word problems right?

    python -m scripts.judge_target --data FOLDER --target FOLDER [--temperatures 0 0.7 1.0] [--json FILE]

"distinct" is the mean share of different token 4-grams in a text. "right": the number after "The answer is".
"""

from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from jddtree.tokenizer import Tokenizer, load_tokenizer
from scripts.pair import options, stages
from scripts.pair.acceptance import markdown
from scripts.pair.command import run
from scripts.pair.distinct import distinct_share
from scripts.pair.documents import KINDS, Documents
from scripts.pair.publish import read_target, write_json
from scripts.pair.right import stated
from scripts.pair.sampler import write
from scripts.pair.section import replace_section
from scripts.pair.target import rounded


def main(arguments: list[str] | None = None) -> None:
    parser = options.parser(__doc__)
    parser.add_argument("--target", type=Path, required=True, help="published target folder")
    parser.add_argument(
        "--texts", type=int, default=32, help="prompts a kind, the first of the held-out ones"
    )
    parser.add_argument("--slots", type=int, default=352, help="longest text, prompt included")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--json", type=Path, help="write figures and texts")
    parser.add_argument(
        "--table", type=Path, help="Markdown file: write the table between its `judge_target TARGET` lines"
    )
    args = parser.parse_args(arguments)
    if options.dtype_of(args) == np.float32:
        jax.config.update("jax_default_matmul_precision", "highest")
    size, tokenizer = stages.size_of(args, args.target), load_tokenizer(args.target)
    assert tokenizer is not None
    config, target = stages.config_of(size), rounded(read_target(args.target), options.dtype_of(args))
    valid = stages.corpus(args, "valid")

    titles = ["kind", "temperature", "texts", "stopped", "distinct", "mean tokens", "right"]
    rows = []
    for temperature in args.temperatures:
        for index, kind in enumerate(KINDS):
            chosen = np.flatnonzero(
                (valid.kinds == index) & (valid.prompts > 0) & (valid.prompts < args.slots)
            )
            chosen = chosen[: args.texts]
            if not len(chosen):
                continue
            prompts = np.full((len(chosen), args.slots), size.special.pad, np.int32)
            for row, i in enumerate(chosen):
                prompts[row, : valid.prompts[i]] = _ids(valid, i)[: valid.prompts[i]]
            warm = np.full(len(chosen), temperature, np.float32)
            texts = np.asarray(
                write(config, target, prompts, valid.prompts[chosen], warm, jax.random.key(args.seed))
            )
            answers = [text[n:].tolist() for text, n in zip(texts, valid.prompts[chosen], strict=True)]
            rows.append({"kind": kind, "temperature": temperature, "texts": len(chosen)})
            rows[-1] |= _figures(
                answers, [_ids(valid, i) for i in chosen], size.special.end_of_turn, tokenizer
            )
    lines = [
        [f"{v:.3g}" if isinstance(v, float) else str(v) for v in list(row.values())[: len(titles)]]
        for row in rows
    ]
    table = Table(*titles, title=f"{args.texts} held-out prompts a kind, at most {args.slots} tokens")
    for line in lines:
        table.add_row(*line)
    Console(width=110).print(table)
    if args.json:
        write_json(args.json, {"rows": rows})
    if args.table:
        replace_section(args.table, f"judge_target {args.target.name}", markdown(titles, lines))


def _ids(documents: Documents, index: int) -> np.ndarray:
    start = documents.starts()[index]
    return documents.tokens[start : start + documents.lengths[index]]


def _figures(answers: list[list[int]], originals: list[np.ndarray], stop: int, tokenizer: Tokenizer) -> dict:
    """Counts and means over the texts of a kind; ``right`` is "-" where texts hold no numbered answer."""
    stopped = [stop in answer for answer in answers]
    cut = [answer[: answer.index(stop)] if stop in answer else answer for answer in answers]
    texts = [tokenizer.decode(answer) for answer in cut]
    wanted = [stated(tokenizer.decode(original.tolist())) for original in originals]
    right = [stated(text) == number for text, number in zip(texts, wanted, strict=True)]
    return {
        "stopped": sum(stopped),
        "distinct": float(np.mean([distinct_share(answer) for answer in cut])),
        "mean_tokens": float(np.mean([len(answer) for answer in cut])),
        "right": "-" if None in wanted else sum(right),
        "written": texts,
    }


if __name__ == "__main__":
    run(main)
