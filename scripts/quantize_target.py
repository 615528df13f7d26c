"""Publish a trained target: routed experts INT4, the rest bfloat16. Prints the loss by kind before and after.

python -m scripts.quantize_target --data FOLDER --tokenizer FOLDER --target FOLDER --out FOLDER
"""

from pathlib import Path

import jax.numpy as jnp
from safetensors.numpy import load_file

from jddtree.errors import InputError
from scripts.pair import options, stages
from scripts.pair.command import run
from scripts.pair.publish import write_target


def main(arguments: list[str] | None = None) -> None:
    parser = options.parser(__doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder that scripts.train_target wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the published target")
    options.add_tokenizer(parser)
    args = parser.parse_args(arguments)
    file = args.target / "target.safetensors"
    if not file.is_file():
        raise InputError(f"{file} does not exist: run scripts.train_target first")
    size = stages.size_of(args, args.tokenizer)
    params = {name: jnp.asarray(value) for name, value in load_file(file).items()}
    write_target(args.out, size, params, args.tokenizer)
    stages.judge_target(args, size, params, options.clock())


if __name__ == "__main__":
    run(main)
