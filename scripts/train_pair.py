"""Train the pair: target, INT4, answers, drafter, in one process. Every result is written once it exists.

    python -m scripts.train_pair --data FOLDER --tokenizer FOLDER --out FOLDER

--out gets `k2-mini/` (target), `k2-mini-dflash/` (drafter) and `training.json` (losses, and what the drafter
gets right). The same stages one by one: `scripts.train_target`, `quantize_target`, `write_answers` and
`train_drafter`.
"""

from pathlib import Path

import jax

from scripts.pair import options, stages
from scripts.pair.command import run
from scripts.pair.publish import write_drafter, write_json, write_target


def main(arguments: list[str] | None = None) -> None:
    parser = options.parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the two checkpoints")
    options.add_tokenizer(parser)
    options.add_target(parser)
    options.add_answers(parser)
    options.add_drafter(parser)
    options.add_cache(parser)
    args = parser.parse_args(arguments)

    say = options.clock()
    size, train = stages.size_of(args, args.tokenizer), stages.corpus(args, "train")
    args.out.mkdir(parents=True, exist_ok=True)
    report: dict = {"device": jax.devices()[0].device_kind}
    report["flags"] = {name: value for name, value in vars(args).items() if isinstance(value, int | float)}

    params = stages.train_target(args, size, train, say)
    write_target(args.out / "k2-mini", size, params, args.tokenizer)
    say("target written")
    report |= stages.judge_target(args, size, params, say)
    write_json(args.out / "training.json", report)

    del params
    pair = stages.open_target(args, args.out / "k2-mini", say)
    answers = stages.answer(args, pair, train, args.out / "answers", say)
    report["answers"] = {"texts": len(answers.lengths), "tokens": int(answers.lengths.sum())}
    state = args.out / "drafter.state"
    raw, drafter, right = stages.train_drafter(args, pair, answers, train, state, say)
    write_drafter(args.out / "k2-mini-dflash", raw, drafter, args.int4)
    write_json(args.out / "training.json", report | right)
    state.unlink(missing_ok=True)
    say("done")


if __name__ == "__main__":
    run(main)
