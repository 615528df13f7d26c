"""Train a DFlash drafter for a published target on the target's own answers, and publish it.

Any supported target serves. The drafter's size follows the target's unless flags say otherwise, and its mask
token is one that no text holds. While it trains it is run in the real decoder a few times: tokens that a
chain commits a round, and how often each slot is right. A stopped run goes on where it last saved its state.

    python -m scripts.train_drafter --target FOLDER --answers FOLDER... --out FOLDER [--data FOLDER] [--int4]
        [--start FOLDER]
"""

from pathlib import Path

from scripts.pair import options, stages
from scripts.pair.answers import read_answers
from scripts.pair.command import run
from scripts.pair.publish import write_drafter, write_json


def main(arguments: list[str] | None = None) -> None:
    parser = options.base(__doc__)
    parser.add_argument("--target", type=Path, required=True, help="published target folder")
    parser.add_argument(
        "--answers",
        type=Path,
        nargs="+",
        required=True,
        help="folders that scripts.write_answers or scripts.encode_texts wrote",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the drafter")
    parser.add_argument("--data", type=Path, nargs="+", help="folders with train.npz.xz to mix in")
    parser.add_argument(
        "--start",
        type=Path,
        help="published drafter whose weights and config to begin with; --layers, --mlp-width, --heads with "
        "--kv-heads, and --taps may ask for more than it has",
    )
    parser.add_argument("--save-every", type=int, default=1000, help="steps between two saved states")
    options.add_width(parser)
    options.add_drafter(parser)
    options.add_cache(parser)
    args = parser.parse_args(arguments)
    say = options.clock()
    pair = stages.open_target(args, args.target, say)
    start = stages.open_start(args, pair, args.start, say) if args.start else None
    train = stages.corpus(args, "train") if args.data else None
    state = args.out / "drafter.state"
    answers = read_answers(*args.answers)
    raw, params, report = stages.train_drafter(args, pair, answers, train, state, say, start)
    write_drafter(args.out, raw, params, args.int4)
    write_json(args.out / "training.json", report)
    state.unlink(missing_ok=True)
    say(f"{args.out} written")


if __name__ == "__main__":
    run(main)
