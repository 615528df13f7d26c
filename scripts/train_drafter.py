"""Train a DFlash drafter on a published target's own features and answers, and publish it.

python -m scripts.train_drafter --data FOLDER --target FOLDER --answers FILE.npz.xz --out FOLDER
"""

from pathlib import Path

from scripts.pair import options, stages
from scripts.pair.command import run
from scripts.pair.documents import Documents
from scripts.pair.publish import read_target, write_drafter
from scripts.pair.target import rounded


def main(arguments: list[str] | None = None) -> None:
    parser = options.parser(__doc__)
    parser.add_argument("--target", type=Path, required=True, help="published target folder")
    parser.add_argument("--answers", type=Path, required=True, help="file that scripts.write_answers wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the drafter")
    options.add_drafter(parser)
    args = parser.parse_args(arguments)
    size = stages.size_of(args, args.target)
    target = rounded(read_target(args.target), options.dtype_of(args))
    train = stages.corpus(args, "train")
    drafter, _ = stages.train_drafter(
        args, size, target, Documents.load(args.answers), train, options.clock()
    )
    write_drafter(args.out, size, drafter)


if __name__ == "__main__":
    run(main)
