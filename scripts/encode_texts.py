"""Encode texts that a target wrote elsewhere, as answers for `scripts.train_drafter`.

Texts are JSON lines {"kind", "prompt", "text"}, plain or `.xz`. They go through the target's own tokenizer
and chat template, and end with its stop token.

    python -m scripts.encode_texts --target FOLDER --out FOLDER FILE [FILE ...]
"""

from pathlib import Path

from scripts.pair import options, stages
from scripts.pair.answers import save_texts
from scripts.pair.command import run
from scripts.pair.mixture import shares_of
from scripts.pair.prompts import encoded_texts


def main(arguments: list[str] | None = None) -> None:
    parser = options.base(__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--target", type=Path, required=True, help="published target folder, or smollm2")
    parser.add_argument("--out", type=Path, required=True, help="folder for the encoded texts")
    parser.add_argument("--longest", type=int, default=512, help="tokens; longer texts are left out")
    options.add_keep(parser)
    options.add_cache(parser)
    args = parser.parse_args(arguments)
    say = options.clock()
    pair = stages.open_target(args, args.target, say)
    stop, shares = stages.stops_of(pair)[0], shares_of(args.keep)
    texts = encoded_texts(args.files, pair, stop, args.longest, shares, args.seed)
    save_texts(texts, args.out)
    say(f"{args.out}: {len(texts.lengths)} texts, {texts.lengths.sum() / 1e6:.2f} M tokens")


if __name__ == "__main__":
    run(main)
