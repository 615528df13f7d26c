"""python -m jddtree.generate "PROMPT": text from a target and its drafter, through a draft tree."""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from rich.console import Console

from jddtree.chat import encode_chat, load_template
from jddtree.decode import Method
from jddtree.decoder import Decoder, Generation, check_prompt, slots_for
from jddtree.errors import InputError
from jddtree.exactness import Exactness, compare
from jddtree.load import Pair, bundled_pair, load_pair
from jddtree.tokenizer import TextStream, Tokenizer, stop_ids

DEFAULT_BUDGET = 16
SUSPICIOUS_ROUNDS = 16
"""A drafter of which nothing is accepted for so many rounds is broken or meant for another target."""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong flag in one line, as all bad input is reported."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see --help)")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags, checked against each other. Raises InputError."""
    parser = _Parser(
        prog="python -m jddtree.generate",
        description="Generate text with a target model and a DFlash drafter. The output is the target's own "
        "greedy text. Exit status: 0 done, 1 a check failed, 2 bad input, 130 interrupted.",
    )
    add = parser.add_argument
    add("prompt", nargs="?", help="text; goes through the chat template if there is one, unless --raw")
    add("--target", type=Path, metavar="DIR", help="target folder, published or Orbax (default: bundled)")
    add("--drafter", type=Path, metavar="DIR", help="DFlash drafter folder (default: bundled)")
    add("--method", choices=("tree", "chain", "ar"), default="tree", help="ar: plain decoding, no drafter")
    add("--budget", type=int, metavar="N", help=f"nodes of a tree (default {DEFAULT_BUDGET})")
    add("--topk", type=int, metavar="K", help="children that a tree node may have (default: no cap)")
    add("--max-new-tokens", type=int, default=256, metavar="N", help="tokens to generate (default 256)")
    add("--max-context", type=int, metavar="N", help="tokens of prompt and output (default: the target's)")
    add("--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU, else bfloat16")
    add("--raw", action="store_true", help="encode the prompt as plain text, without the chat template")
    add("--thinking", choices=("on", "off"), default="off", help="for templates that know it (default off)")
    add("--prompt-ids", metavar="IDS", help="token ids as a JSON list, or @FILE; needs no tokenizer")
    add("--stop-ids", metavar="IDS", help="more token ids that end the text: a JSON list, or @FILE")
    add("--ignore-eos", action="store_true", help="do not stop at the model's own end tokens")
    add("--verify", action="store_true", help="also decode plainly and compare")
    add("--json", metavar="FILE", help="write the result; - for standard output (the text moves to stderr)")
    add("--trace", action="store_true", help="put every round's tree and accepted slots into the JSON")
    add("--cache-dir", type=Path, metavar="DIR", help="for converted weights and compiled programs")
    flags = parser.parse_args(arguments)
    for name in ("budget", "topk"):
        if getattr(flags, name) is not None and flags.method != "tree":
            raise InputError(f"--{name} belongs to --method tree, not to {flags.method}")
    if flags.budget is not None and flags.budget < 0:
        raise InputError(f"--budget must be 0 or more, not {flags.budget}")
    for name in ("topk", "max_new_tokens", "max_context"):
        value = getattr(flags, name)
        if value is not None and not 1 <= value < 2**31:
            raise InputError(f"--{name.replace('_', '-')} must be 1 or more (and fit 32 bits), not {value}")
    if flags.trace and not flags.json:
        raise InputError("--trace goes into the JSON: add --json FILE")
    if (flags.prompt is None) == (flags.prompt_ids is None):
        raise InputError('give one prompt: either "TEXT" or --prompt-ids')
    if flags.target is not None and flags.drafter is None and flags.method != "ar":
        raise InputError(f"--target needs its --drafter for --method {flags.method} (--method ar needs none)")
    if flags.target is None and flags.drafter is not None:
        raise InputError("--drafter needs the --target that it was trained for")
    if flags.drafter is not None and flags.method == "ar":
        raise InputError("--method ar uses no --drafter")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status: 0, 1 a check failed, 2 bad input, 130 interrupted."""
    try:
        return run(parse(arguments))
    except InputError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted before the first token")
        return 130


def run(flags: argparse.Namespace) -> int:
    """Load, decode, stream, check, report. Returns the exit status. Raises InputError."""
    cache_dir = (
        flags.cache_dir or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jddtree"
    )
    jax.config.update("jax_compilation_cache_dir", str(cache_dir / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    write_json = json_writer(flags.json)
    began = time.perf_counter()
    target, drafter = bundled_pair() if flags.target is None else (flags.target, flags.drafter)
    pair = load_pair(
        target,
        None if flags.method == "ar" else drafter,
        dtype=flags.dtype,
        cache_dir=cache_dir,
        say=say,
    )
    if pair.dtype == "float32":
        # The default on a GPU is TF32, whose rounding is not float32's.
        jax.config.update("jax_default_matmul_precision", "highest")
    seconds = {"load": time.perf_counter() - began}
    job = Job(flags, pair)
    with Console(stderr=True).status("compiling"):
        decoder = job.decoder(job.method)
    seconds["compile"] = decoder.compile_seconds
    out = sys.stderr if flags.json == "-" else sys.stdout
    result = stream(job.decode(decoder), pair.tokenizer, out, seconds)
    say(summary(result, seconds, decoder.kernels))
    lengths = result.acceptance_lengths
    if job.method.budget and len(lengths) >= SUSPICIOUS_ROUNDS and max(lengths) == 1:
        say("warning: not one drafted token was accepted; the drafter does not seem to fit this target")
    checked = Exactness(checked=False)
    if flags.verify and result.finish_reason != "interrupted":
        checked = job.verify(result)
        say(f"verify: {checked.verdict(pair.dtype)}")
        if not checked.equal:
            say(f"reproduce: {job.reproduce(checked)}")
    write_json(job.record(result, seconds, decoder, checked))
    if result.finish_reason == "interrupted":
        return 130
    excused = pair.dtype != "float32" and checked.is_tie(pair.dtype)
    return 1 if checked.equal is False and not excused else 0


class Job:
    """One prompt for one pair: what the flags come to. Raises InputError where they do not fit the pair."""

    def __init__(self, flags: argparse.Namespace, pair: Pair):
        self.flags, self.pair = flags, pair
        config = pair.target.config
        self.limit = min(flags.max_context or config.max_position, config.max_position)
        self.prompt = self._prompt()
        check_prompt(self.prompt, config.vocab_size, self.limit)
        checkpoint = pair.checkpoint
        self.stops = read_ids(flags.stop_ids, "--stop-ids") if flags.stop_ids else []
        if not flags.ignore_eos:
            self.stops += stop_ids(checkpoint.config, checkpoint.generation_config, pair.tokenizer)
        self.budget = DEFAULT_BUDGET if flags.budget is None else flags.budget
        self.method = {
            "ar": Method.plain(),
            "chain": Method.chain(pair.block_size),
            "tree": Method.tree(pair.block_size, self.budget),
        }[flags.method]

    def _prompt(self) -> list[int]:
        flags, tokenizer, folder = self.flags, self.pair.tokenizer, self.pair.checkpoint.folder
        if flags.prompt_ids is not None:
            return read_ids(flags.prompt_ids, "--prompt-ids")
        if tokenizer is None:
            raise InputError(f"{folder} has no tokenizer: pass --prompt-ids instead of text")
        template = None if flags.raw else load_template(folder)
        if template is None:
            return tokenizer.encode(flags.prompt, specials=False)
        message = {"role": "user", "content": flags.prompt}
        return encode_chat(tokenizer, template, [message], flags.thinking == "on")

    def decoder(self, method: Method) -> Decoder:
        """A method compiled for this prompt."""
        tokens = min(len(self.prompt) + self.flags.max_new_tokens, self.limit)
        decoder = Decoder(
            self.pair.target,
            self.pair.drafter,
            method,
            rows=1,
            slots=slots_for(tokens),
            dtype=jnp.dtype(self.pair.dtype),
        )
        decoder.compile_for([self.prompt])
        return decoder

    def decode(self, decoder: Decoder) -> Iterator[Generation]:
        """The growing result, after the prefill and after every chunk of rounds."""
        for rows in decoder.decode(
            [self.prompt],
            max_new=self.flags.max_new_tokens,
            stop_ids=self.stops,
            topk=self.flags.topk,
            max_context=self.limit,
        ):
            yield rows[0]

    def verify(self, result: Generation) -> Exactness:
        """Decode plainly and compare."""
        *_, plain = self.decode(self.decoder(Method.plain()))
        return compare(result.output_ids, plain.output_ids, plain.margins)

    def reproduce(self, checked: Exactness) -> str:
        """A command that shows the plain token at the first divergence."""
        flags = self.flags
        words = ["python", "-m", "jddtree.generate", "--method", "ar", "--dtype", self.pair.dtype]
        words += ["--target", str(flags.target)] if flags.target else []
        words += [
            "--prompt-ids",
            json.dumps(self.prompt),
            "--stop-ids",
            json.dumps(self.stops),
            "--ignore-eos",
        ]
        words += ["--max-new-tokens", str((checked.first_divergence or 0) + 1), "--json", "-"]
        return shlex.join(words)

    def record(
        self, result: Generation, seconds: dict[str, float], decoder: Decoder, checked: Exactness
    ) -> dict[str, Any]:
        """What --json holds."""
        tokenizer = self.pair.tokenizer
        tree = self.flags.method == "tree"
        record = {
            "prompt_ids": self.prompt,
            "output_ids": result.output_ids,
            "text": tokenizer.decode(result.output_ids) if tokenizer else None,
            "finish_reason": result.finish_reason,
            "method": self.flags.method,
            "budget": self.budget if tree else None,
            "topk": self.flags.topk,
            "acceptance_lengths": result.acceptance_lengths,
            "committed_per_round": result.committed_per_round,
            "seconds": seconds,
            "tokens_per_second": tokens_per_second(result, seconds),
            "device": device(),
            "dtype": self.pair.dtype,
            "kernels": decoder.kernels,
            "exact": asdict(checked),
        }
        return record | ({"trace": result.trace} if self.flags.trace else {})


def stream(
    growing: Iterator[Generation], tokenizer: Tokenizer | None, out: Any, seconds: dict[str, float]
) -> Generation:
    """Print text as it comes and put the prefill's and the rounds' seconds into ``seconds``.

    Without a tokenizer, ids are printed. After an interrupt the result holds what had come, and its
    finish_reason is "interrupted".
    """
    text = None if tokenizer is None else TextStream(tokenizer)
    result, shown = Generation(), 0
    seconds |= {"prefill": 0.0, "decode": 0.0}

    def show(new: list[int]) -> None:
        words = text.push(new) if text else "".join(f"{token} " for token in new)
        print(words, end="", file=out, flush=True)

    stage, began = "prefill", time.perf_counter()
    try:
        for result in growing:
            seconds[stage] = time.perf_counter() - began
            if stage == "prefill":
                stage, began = "decode", time.perf_counter()
            show(result.output_ids[shown:])
            shown = len(result.output_ids)
    except KeyboardInterrupt:
        # It may have come after ids were added and before they were shown.
        seconds[stage] = time.perf_counter() - began
        result.finish_reason = "interrupted"
        show(result.output_ids[shown:])
    print(text.flush() if text else "", file=out, flush=True)
    return result


def tokens_per_second(result: Generation, seconds: dict[str, float]) -> float | None:
    """Tokens that rounds emitted (all but the prefill's) over the rounds' seconds; None without rounds."""
    return (len(result.output_ids) - 1) / seconds["decode"] if result.acceptance_lengths else None


def summary(result: Generation, seconds: dict[str, float], kernels: dict[str, str]) -> str:
    """One line: what was done, how fast, on what."""
    rounds = len(result.acceptance_lengths)
    speed = tokens_per_second(result, seconds)
    parts = [f"{len(result.output_ids)} tokens ({result.finish_reason}), {rounds} rounds"]
    if result.committed_per_round is not None and speed is not None:
        parts += [f"{result.committed_per_round:.2f} committed tokens a round", f"{speed:.1f} tokens/s"]
    parts += [f"compile {seconds['compile']:.1f} s", device()]
    parts += [", ".join(f"{operation}: {name}" for operation, name in sorted(kernels.items()))]
    return f"[{' | '.join(parts)}]"


def device() -> str:
    """The accelerator's own name."""
    return jax.devices()[0].device_kind


def read_ids(value: str, flag: str) -> list[int]:
    """Token ids from a JSON list, or from the file that @FILE names. Raises InputError."""
    try:
        ids = json.loads(Path(value[1:]).read_text(encoding="utf-8") if value.startswith("@") else value)
    except OSError as error:
        raise InputError(f"{flag}: {value[1:]} cannot be read: {error.strerror}") from None
    except ValueError:
        ids = None
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise InputError(f"{flag} must be a JSON list of token ids such as '[1, 2]', or @FILE")
    return ids


def json_writer(destination: str | None) -> Callable[[dict[str, Any]], None]:
    """How to write the record. Raises InputError at once if the file cannot be written at the end."""
    if destination is None:
        return lambda record: None
    if destination == "-":
        return lambda record: print(json.dumps(record))
    path = Path(destination)
    try:
        path.open("a").close()  # touch would pass on a folder
    except OSError as error:
        raise InputError(f"--json: {path} cannot be written: {error.strerror}") from None

    def write(record: dict[str, Any]) -> None:
        path.write_text(json.dumps(record) + "\n", encoding="utf-8")

    return write


def say(line: str) -> None:
    """A line for the user, apart from the text."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
