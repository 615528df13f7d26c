"""Flags that several training scripts share, and what follows from them."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from scripts.pair.blend import WEIGHTS
from scripts.pair.loss import LOSSES
from scripts.pair.sizes import SIZES


def base(text: str | None) -> argparse.ArgumentParser:
    """A parser with --seed and --dtype."""
    found = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seed", type=int, default=0)
    found.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU, else bfloat16"
    )
    return found


def parser(text: str | None) -> argparse.ArgumentParser:
    """A parser with --data, --size, --seed, --width, --batch and --dtype."""
    found = base(text)
    found.add_argument(
        "--data", type=Path, nargs="+", required=True, help="folders with train.npz.xz and valid.npz.xz"
    )
    found.add_argument("--size", choices=sorted(SIZES), default="mini")
    found.add_argument("--batch", type=int, default=128, help="rows in a batch of the target's training")
    add_width(found)
    return found


def add_width(to: argparse.ArgumentParser) -> None:
    """The flag for the length of training rows."""
    to.add_argument("--width", type=int, default=512, help="tokens in a training row")


def add_cache(to: argparse.ArgumentParser) -> None:
    """The flag for converted checkpoints."""
    to.add_argument("--cache-dir", type=Path, default=Path.home() / ".cache" / "jddtree")


def add_tokenizer(to: argparse.ArgumentParser) -> None:
    """The flag for the tokenizer's folder."""
    to.add_argument("--tokenizer", type=Path, required=True, help="folder with tiktoken.model")


def add_target(to: argparse.ArgumentParser) -> None:
    """Flags of target training."""
    to.add_argument("--target-steps", type=int, default=4600)
    to.add_argument("--target-rate", type=float, default=4e-3, help="learning rate")
    to.add_argument(
        "--weights",
        nargs="*",
        default=[],
        metavar="KIND=NUMBER",
        help="how often a kind is seen against one of weight 1; default: "
        + " ".join(f"{kind}={weight:g}" for kind, weight in WEIGHTS.items()),
    )
    to.add_argument("--save-every", type=int, default=1000, help="steps between two saved states")
    to.add_argument("--unlike-rounds", type=int, default=8, help="rounds against loops, at the end")
    to.add_argument("--unlike-steps", type=int, default=100, help="steps of such a round")
    to.add_argument("--unlike-weight", type=float, default=2.0, help="weight of the repeats' unlikelihood")
    to.add_argument("--unlike-texts", type=int, default=4096, help="texts that such a round writes")
    to.add_argument("--unlike-slots", type=int, default=320, help="longest of them, prompt included")


def add_answers(to: argparse.ArgumentParser) -> None:
    """Flags of writing answers."""
    to.add_argument("--answer-batches", type=int, default=72)
    to.add_argument("--answer-rows", type=int, default=4096, help="texts written at once")
    to.add_argument("--answer-slots", type=int, default=384, help="longest text, prompt included")
    add_keep(to)


def add_keep(to: argparse.ArgumentParser) -> None:
    """The flag for leaving prompts out by kind."""
    to.add_argument(
        "--keep",
        nargs="*",
        default=[],
        metavar="KIND=SHARE",
        help="share of a kind to use; default: all of it",
    )


def add_drafter(to: argparse.ArgumentParser) -> None:
    """Flags of drafter training."""
    to.add_argument("--drafter-steps", type=int, default=8400)
    to.add_argument("--drafter-rate", type=float, default=4e-3, help="learning rate")
    to.add_argument("--drafter-batch", type=int, default=64, help="rows in a batch")
    to.add_argument("--anchors", type=int, default=96, help="blocks trained in each row and step")
    to.add_argument("--loss", choices=LOSSES, default=LOSSES[0], help="how a block's slots are weighted")
    to.add_argument("--judge-every", type=int, help="steps; default: a third of the run")
    to.add_argument("--int4", action="store_true", help="publish INT4 weights instead of bfloat16")
    to.add_argument("--mask-token", type=int, help="id that no text holds; default: an unused one")
    to.add_argument("--layers", type=int, help="of the drafter; default for this and the next: its size's")
    to.add_argument("--block", type=int, help="tokens of a block, the anchor included")
    to.add_argument("--taps", type=int, nargs="+", help="target layers, from 0, that the drafter reads")
    to.add_argument("--heads", type=int)
    to.add_argument("--kv-heads", type=int)
    to.add_argument("--head-dim", type=int)
    to.add_argument("--mlp-width", type=int)
    to.add_argument(
        "--corpus-share", type=float, default=0.15, help="share of corpus texts beside the answers"
    )


def dtype_of(args: argparse.Namespace) -> jnp.dtype:
    """The type to compute in."""
    return jnp.dtype(args.dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16"))


def on_gpu() -> bool:
    """Whether cuDNN attention is there."""
    return jax.default_backend() == "gpu"


def clock() -> Callable[[str], None]:
    """A function that prints lines with the seconds since now."""
    begin = time.time()

    def say(line: str) -> None:
        print(f"[{time.time() - begin:6.1f} s] {line}", flush=True)

    return say
