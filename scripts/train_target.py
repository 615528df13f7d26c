"""Train the target in float and write its parameters (`target.safetensors`, float32) into --out.

python -m scripts.train_target --data FOLDER --tokenizer FOLDER --out FOLDER
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from scripts.pair import options, stages
from scripts.pair.command import run


def main(arguments: list[str] | None = None) -> None:
    parser = options.parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for target.safetensors")
    options.add_tokenizer(parser)
    options.add_target(parser)
    args = parser.parse_args(arguments)
    say = options.clock()
    size = stages.size_of(args, args.tokenizer)
    params = stages.train_target(args, size, stages.corpus(args, "train"), say)
    args.out.mkdir(parents=True, exist_ok=True)
    save_file({name: np.asarray(value) for name, value in params.items()}, args.out / "target.safetensors")
    say(f"{args.out / 'target.safetensors'} written")


if __name__ == "__main__":
    run(main)
