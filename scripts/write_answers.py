"""Let a published target answer the corpus's prompts, warm and cold, for the drafter to learn from.

Temperatures are 0, 0.7 and 1.0; the target answers as it is shipped, with INT4 experts.

    python -m scripts.write_answers --data FOLDER --target FOLDER --out FILE.npz.xz
"""

from pathlib import Path

from scripts.pair import options, stages
from scripts.pair.command import run
from scripts.pair.publish import read_target
from scripts.pair.target import rounded


def main(arguments: list[str] | None = None) -> None:
    parser = options.parser(__doc__)
    parser.add_argument("--target", type=Path, required=True, help="published target folder")
    parser.add_argument("--out", type=Path, required=True, help="file for the encoded answers")
    options.add_answers(parser)
    args = parser.parse_args(arguments)
    size = stages.size_of(args, args.target)
    target = rounded(read_target(args.target), options.dtype_of(args))
    stages.answer(args, size, target, stages.corpus(args, "train"), options.clock()).save(args.out)


if __name__ == "__main__":
    run(main)
