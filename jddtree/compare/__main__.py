"""``python -m jddtree.compare``: the shipped code against reference data, PyTorch and itself."""

import argparse
import sys

from jddtree.accept import RULES
from jddtree.command import Parser, exit_status, leave, path
from jddtree.compare import against_torch, goldens, humaneval, pair, runs, sampling
from jddtree.engine import DEFAULT_BUDGET, METHODS


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line. Raises InputError."""
    parser = Parser(prog="python -m jddtree.compare", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_goldens(
        commands.add_parser(
            "goldens",
            help="reference data through the shipped code, in float32",
            description="Run every category found under DIR and print a table. Exit status: 0 all passed, "
            "1 a case failed or a category that is present ran no case, 2 DIR cannot be used.",
        )
    )
    _add_sampling(
        commands.add_parser(
            "sampling",
            help="drawn texts against the target's exact distribution",
            description="Work out the exact distribution of the first L tokens after a prompt, draw texts "
            "with the decoder, and test them with chi-square, in float32. Every possible prefix is run, so "
            "this is for small vocabularies, or for few tokens. Nothing ends a text before its L tokens. "
            f"Exit status: 0 passed, 1 a p-value under {sampling.FAILS_BELOW:g}, 2 bad input.",
        )
    )
    against_torch.add_flags(
        commands.add_parser(
            "torch",
            help="the same folders in PyTorch and here, stage by stage",
            description="Run the public PyTorch code in an interpreter of its own and compare every stage: "
            "embedding, layers, router, logits, taps, drafter, tree, verify logits, greedy ids. Exit status: "
            "0 equal or a tie within rounding, 1 a bug (the last line names the first stage), 2 bad input.",
        ),
        path,
    )
    runs.add_flags(
        commands.add_parser(
            "runs",
            help="two saved generations or sweeps, side by side",
            description="Compare two files of generate --json, text by text, or two files of sweep, cell by "
            "cell. Exit status: 0 equal or a tie within rounding, 1 a bug, 2 bad input.",
        ),
        path,
    )
    pair.add_flags(
        commands.add_parser(
            "pair",
            help="does this drafter draft for this target",
            description="Acceptance of a drafter beside that of one that cannot read its features, and of a "
            "perfect one. Exit status: 0 sound, 1 something is broken, 2 bad input.",
        ),
        path,
    )
    humaneval.add_flags(
        commands.add_parser(
            "humaneval",
            help="coding problems solved plainly and with a tree, and scored",
            description="Answer HumanEval both ways, compare the texts and run the problems' tests. Exit "
            "status: 0 equal or a tie within rounding, 1 a bug, 2 bad input.",
        ),
        path,
    )
    return parser.parse_args(arguments)


def _add_goldens(command: argparse.ArgumentParser) -> None:
    command.add_argument("dir", metavar="DIR", type=path, help="a folder laid out like tests/data/goldens")
    command.add_argument(
        "--json", metavar="FILE", help="also write the table as JSON; - means standard output"
    )


def _add_sampling(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--target", type=path, metavar="DIR", required=True, help="target folder, published or Orbax")
    add("--drafter", type=path, metavar="DIR", help="DFlash drafter folder; --method ar needs none")
    add("--prompt-ids", metavar="IDS", required=True, help="token ids as a JSON list, or @FILE")
    add("--draws", type=int, default=20_000, metavar="N", help="texts to draw (default 20000)")
    add("--length", type=int, default=2, metavar="L", help="tokens of a text (default 2)")
    add("--temperature", type=float, default=1.0, metavar="T", help="default 1")
    add("--top-k", type=int, metavar="K", help="sample among the K likeliest tokens")
    add("--top-p", type=float, default=1.0, metavar="P", help="sample among the likeliest that make up P")
    add("--min-p", type=float, default=0.0, metavar="P", help="cut tokens under P times the likeliest")
    add("--method", choices=METHODS, default="tree", help="default tree")
    add("--budget", type=int, metavar="N", help=f"nodes of a tree (default {DEFAULT_BUDGET})")
    add("--rule", choices=RULES, default="follow", help="how rows walk the tree (default follow)")
    add("--seed", type=int, default=0, metavar="N", help="of the first text; the next has N + 1 (default 0)")
    add("--rows", type=int, default=256, metavar="B", help="texts drawn at a time (default 256)")
    add("--json", metavar="FILE", help="also write the result as JSON; - means standard output alone")


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""

    def job() -> int:
        flags = parse(arguments)
        if flags.command == "goldens":
            return goldens.main(flags.dir, flags.json)
        modules = {
            "sampling": sampling,
            "torch": against_torch,
            "runs": runs,
            "pair": pair,
            "humaneval": humaneval,
        }
        return modules[flags.command].main(flags)

    return exit_status(job, "interrupted")


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
