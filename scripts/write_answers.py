"""Let a published target answer prompts, warm and cold, for the drafter to learn from.

Temperatures are 0, 0.7 and 1.0; the target answers as it is shipped. Prompts are those of encoded text
(--data, the bundled tokenizer's ids), or of JSON lines {"kind", "prompt"} (--prompts), which go through the
target's own tokenizer and chat template. One file a batch; a stopped run goes on with the next.

    python -m scripts.write_answers --target FOLDER --out FOLDER (--data FOLDER | --prompts FILE)
"""

from pathlib import Path

from jddtree.errors import InputError
from scripts.pair import options, stages
from scripts.pair.command import run
from scripts.pair.prompts import encoded_prompts


def main(arguments: list[str] | None = None) -> None:
    parser = options.base(__doc__)
    parser.add_argument("--target", type=Path, required=True, help="published target folder")
    parser.add_argument("--out", type=Path, required=True, help="folder for the encoded answers")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, nargs="+", help="folders with train.npz.xz")
    source.add_argument("--prompts", type=Path, nargs="+", help="JSON lines")
    parser.add_argument(
        "--varied",
        type=float,
        default=0.0,
        metavar="NUMBER",
        help="with --prompts: for every prompt so many cut short, or mixed with others, as users' may be "
        "unlike all of them",
    )
    options.add_answers(parser)
    options.add_cache(parser)
    args = parser.parse_args(arguments)
    if args.varied and not args.prompts:
        raise InputError("--varied goes with --prompts: encoded text is taken as it is")
    say = options.clock()
    pair = stages.open_target(args, args.target, say)
    prompts = (
        encoded_prompts(args.prompts, pair, args.varied, args.seed)
        if args.prompts
        else stages.corpus(args, "train")
    )
    stages.answer(args, pair, prompts, args.out, say)


if __name__ == "__main__":
    run(main)
