"""Write what a run of `scripts.train_pair` says about itself into a model card.

    python -m scripts.write_card --run FOLDER [--card checkpoints/README.md]

Sections, each between `<!-- begin NAME k2-mini -->` and its end: "loss" (held-out loss by kind, before and
after INT4), "text" (tokens of each kind and how often they were seen), "loops" (distinct 4-grams of greedy
answers while the target was trained against loops). `scripts.eval_pair` and `scripts.judge_target` write
theirs with --table.
"""

import argparse
from pathlib import Path
from typing import Any

from jddtree.config import read_json
from scripts.pair.acceptance import markdown
from scripts.pair.command import run
from scripts.pair.section import replace_section

TARGET = "k2-mini"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="folder that train_pair wrote")
    parser.add_argument("--card", type=Path, default=Path("checkpoints/README.md"))
    args = parser.parse_args(arguments)
    report = read_json(args.run / "training.json")
    target = read_json(args.run / "target_training.json")
    replace_section(args.card, f"loss {TARGET}", _losses(report))
    replace_section(args.card, f"text {TARGET}", _kinds(target["kinds"]))
    replace_section(args.card, f"loops {TARGET}", _loops(target["distinct"], report["flags"]["target_steps"]))
    print(f"{args.card} written")


def _losses(report: dict[str, Any]) -> str:
    before, after = report["loss_float"], report["loss_int4"]
    rows = [
        ["before INT4", *(f"{value:.3f}" for value in before.values())],
        ["as shipped", *(f"{after[kind]:.3f}" for kind in before)],
        ["INT4's cost", *(f"{after[kind] - value:.3f}" for kind, value in before.items())],
    ]
    return markdown(["nats a token", *before], rows)


def _kinds(kinds: dict[str, Any]) -> str:
    return markdown(
        ["kind", "M tokens", "share of what was trained on", "seen, times"],
        [
            [kind, f"{row['tokens'] / 1e6:.1f}", f"{row['share']:.1%}", f"{row['seen']:.2f}"]
            for kind, row in kinds.items()
        ],
    )


def _loops(distinct: dict[str, dict[str, float]], steps: int) -> str:
    names = list(next(iter(distinct.values()), {}))
    return markdown(
        ["steps of " + str(steps), *names],
        [[step, *(f"{figures[name]:.2f}" for name in names)] for step, figures in distinct.items()],
    )


if __name__ == "__main__":
    run(main)
