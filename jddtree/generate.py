"""python -m jddtree.generate "PROMPT": text from a target and its drafter, through a draft tree."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
from rich.progress import track

from jddtree import devices, statistics
from jddtree.chat import load_template, thinks
from jddtree.command import console, exit_status, json_writer, leave, say, waiting
from jddtree.decoder import Decoder, Task
from jddtree.engine import DEFAULT_BUDGET, Engine, Prompt
from jddtree.errors import InputError
from jddtree.exactness import Exactness
from jddtree.finish import Generation
from jddtree.flags import DEFAULT_ROWS, parse, wishes
from jddtree.prompts import Wishes, as_ids, as_messages, batches, read_json_list, read_prompts
from jddtree.reading import reading
from jddtree.sharding import ONE_DEVICE, Layout
from jddtree.wording import counted

SUSPICIOUS_ROUNDS = 16
"""A drafter of which nothing is accepted for so many rounds is broken or meant for another target."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status: 0, 1 a check failed, 2 bad input, 130 interrupted."""
    return exit_status(lambda: run(parse(arguments)), "interrupted before the first token")


def run(flags: argparse.Namespace) -> int:
    """Load, decode, stream, check, report. Returns the exit status. Raises InputError."""
    devices.join(flags)
    write_json = json_writer(flags.json)
    prompts = prompts_of(flags)
    if flags.verify and flags.rule == "target-only" and any(wish.temperature > 0 for _, wish, _ in prompts):
        raise InputError("--verify cannot compare texts sampled under target-only, which depend on the tree")
    began = time.perf_counter()
    engine = Engine.load(
        flags.target,
        flags.drafter,
        method=flags.method,
        budget=DEFAULT_BUDGET if flags.budget is None else flags.budget,
        rule=flags.rule,
        top_logprobs=flags.logprobs,
        dtype=flags.dtype,
        cache_dir=flags.cache_dir,
        layout=flags.layout,
        say=say,
    )
    load_seconds = time.perf_counter() - began
    if flags.chat and load_template(engine.pair.checkpoint.folder) is None:
        raise InputError(f"--chat: {engine.pair.checkpoint.folder} has no chat template")
    tasks = [
        task for prompt, wish, name in prompts for task in wish.tasks(engine, prompt, name, flags.max_context)
    ]
    longest = engine.pair.target.config.max_position
    if flags.max_context is not None and flags.max_context > longest:
        say(f"note: the target's context of {longest} tokens holds, not --max-context {flags.max_context}")
    if any(wish.thinking and not wish.raw for _, wish, _ in prompts):
        template = load_template(engine.pair.checkpoint.folder)
        if template is None or not thinks(template):
            say("note: the target's chat template knows no thinking; --thinking on changes nothing")
    many = flags.prompts is not None or flags.n > 1
    show = partial(print, end="", file=sys.stderr if flags.json == "-" else sys.stdout, flush=True)
    show = show if devices.speaks() else lambda text: None
    outputs, status = [], 0
    rows = min(flags.rows or DEFAULT_ROWS, len(tasks))
    groups = batches(tasks, rows)
    for group in track(groups, "decoding", console=console()) if many else groups:
        batch = Batch(flags, engine, group, rows, load_seconds)
        batch.decode(show, show_numbers=len(outputs) if many else None)
        outputs += batch.records()
        status = max(status, batch.status)
        if batch.interrupted:
            break
    write_json({"outputs": outputs} if many else outputs[0])
    return status


def prompts_of(flags: argparse.Namespace) -> list[tuple[Prompt, Wishes, str]]:
    """The prompts that the flags name, with their wishes. Raises InputError."""
    common = wishes(flags)
    if flags.prompts is not None:
        return read_prompts(flags.prompts, common)
    if flags.messages is not None:
        messages = as_messages(read_json_list(f"@{flags.messages}", "--messages"), str(flags.messages))
        return [(messages, common, "the chat")]
    if flags.prompt_ids is not None:
        return [
            (as_ids(read_json_list(flags.prompt_ids, "--prompt-ids"), "--prompt-ids"), common, "the prompt")
        ]
    return [(flags.prompt, common, "the prompt")]


@dataclass
class Seconds:
    """Where the time of one batch went."""

    load: float
    compile: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


class Batch:
    """Tasks that are decoded together in ``rows`` rows, and what is said about them."""

    def __init__(
        self,
        flags: argparse.Namespace,
        engine: Engine,
        tasks: Sequence[Task],
        rows: int,
        load_seconds: float,
    ):
        self.flags, self.engine, self.tasks, self.rows = flags, engine, tasks, rows
        self.seconds = Seconds(load=load_seconds)
        self.results = [Generation() for _ in tasks]
        self.checks = [Exactness(checked=False) for _ in tasks]
        self.stats: dict[str, Any] | None = None
        self.interrupted = False
        self.decoder: Decoder | None = None
        self._shown = 0

    def decode(self, show: Callable[[str], object], show_numbers: int | None) -> None:
        """Decode, show texts and what was done, check.

        A single text streams to ``show``; of many, each is shown under its number when all have come.
        """
        with waiting("compiling"):
            self.decoder = self.engine.decoder(self.tasks, rows=self.rows)
        self.seconds.compile = self.decoder.compile_seconds
        try:
            self._follow(show if show_numbers is None else None)
        except KeyboardInterrupt:
            self.interrupted = True
            for result in self.results:
                if result.finish_reason in (None, "cancelled"):
                    result.finish_reason = "interrupted"
        if show_numbers is None:
            # After an interrupt some of the text may not have been shown.
            show(shown(self.results[0])[self._shown :] + "\n")
        else:
            for number, (task, result) in enumerate(
                zip(self.tasks, self.results, strict=True), show_numbers + 1
            ):
                show(f"--- {number}: {task.name}\n{shown(result)}\n")
        self._report()

    def _follow(self, show: Callable[[str], object] | None) -> None:
        assert self.decoder is not None
        began = time.perf_counter()
        with reading() as tell:
            growing = self.decoder.decode(self.tasks, self.engine.pair.tokenizer, tell)
            self.results = next(growing)
        self.seconds.prefill = time.perf_counter() - began
        # Closed at an interrupt too, which ends all rows.
        with closing(growing):
            self._show(show)
            began = time.perf_counter()
            for self.results in growing:
                self.seconds.decode = time.perf_counter() - began
                self._show(show)

    def _show(self, show: Callable[[str], object] | None) -> None:
        """Show what has come of a single text."""
        if show is not None:
            text = shown(self.results[0])
            show(text[self._shown :])
            self._shown = len(text)

    def _report(self) -> None:
        assert self.decoder is not None
        say(summary(self.results, self.seconds, self.decoder.kernels, self.engine.pair.layout))
        for result in self.results:
            lengths = result.acceptance_lengths
            if self.decoder.method.budget and len(lengths) >= SUSPICIOUS_ROUNDS and max(lengths) == 1:
                say("warning: no drafted token was accepted; the drafter does not seem to fit this target")
            if result.error:
                say(f"error: {result.error}")
        if self.flags.stats and not self.interrupted:
            found = statistics.acceptance([self.results])
            # Programs of one stage are those of a single device.
            single = self.engine.pair.layout.size == 1
            stages = statistics.Stages(self.decoder, self.tasks[0]).times() if single else {}
            self.stats = statistics.as_json(found, stages)
            for line in statistics.as_text(found, stages):
                say(line)
        if self.flags.verify and not self.interrupted:
            self.checks = self.engine.verify(self.tasks, self.results, rows=self.rows)
            for task, check in zip(self.tasks, self.checks, strict=True):
                dtype = self.engine.pair.dtype
                say(f"verify{f' {task.name}' if len(self.tasks) > 1 else ''}: {check.verdict(dtype)}")
                if not check.equal:
                    say(f"reproduce: {reproduce(self.flags, self.engine, task, check)}")

    @property
    def status(self) -> int:
        """The exit status that this batch asks for."""
        dtype = self.engine.pair.dtype
        unequal = [check for check in self.checks if check.equal is False]
        excused = dtype != "float32" and all(check.is_tie(dtype) for check in unequal)
        failed = any(result.error for result in self.results) or (unequal and not excused)
        return 130 if self.interrupted else 1 if failed else 0

    def records(self) -> list[dict[str, Any]]:
        """What --json holds of each task."""
        assert self.decoder is not None
        tree = self.engine.method.name == "tree"
        records = []
        for task, result, check in zip(self.tasks, self.results, self.checks, strict=True):
            record = {
                "prompt_ids": list(task.prompt),
                "output_ids": result.output_ids,
                "margins": result.margins,
                "text": result.text,
                "finish_reason": result.finish_reason,
                "error": result.error,
                "usage": {"prompt_tokens": len(task.prompt), "completion_tokens": len(result.output_ids)},
                "method": self.engine.method.name,
                "budget": (self.decoder.method.budget if task.budget is None else task.budget)
                if tree
                else None,
                "topk": task.topk,
                "policy": asdict(task.policy) or {"temperature": 0.0},
                "acceptance_lengths": result.acceptance_lengths,
                "committed_per_round": result.committed_per_round,
                "seconds": asdict(self.seconds),
                "tokens_per_second": tokens_per_second([result], self.seconds),
                "device": device(),
                "layout": str(self.engine.pair.layout),
                "dtype": self.engine.pair.dtype,
                "kernels": self.decoder.kernels,
                "exact": asdict(check),
            }
            if self.flags.logprobs is not None:
                record |= {"logprobs": result.logprobs, "top_logprobs": result.top_logprobs}
            record |= {"trace": result.trace} if self.flags.trace else {}
            record |= {"stats": self.stats} if self.flags.stats else {}
            records.append(record)
        return records


def shown(result: Generation) -> str:
    """A result as text, or its ids where there is no tokenizer."""
    return "".join(f"{token} " for token in result.output_ids) if result.text is None else result.text


def tokens_per_second(results: Sequence[Generation], seconds: Seconds) -> float | None:
    """Tokens that rounds emitted (all but the prefills') over the rounds' seconds; None without rounds."""
    ran = [result for result in results if result.acceptance_lengths]
    return sum(len(result.output_ids) - 1 for result in ran) / seconds.decode if ran else None


def summary(
    results: Sequence[Generation], seconds: Seconds, kernels: dict[str, str], layout: Layout = ONE_DEVICE
) -> str:
    """One line: what was done, how fast, on what."""
    lengths = [length for result in results for length in result.acceptance_lengths]
    reasons = sorted({str(result.finish_reason) for result in results})
    speed = tokens_per_second(results, seconds)
    texts = f"{len(results)} texts, " if len(results) > 1 else ""
    tokens = counted(sum(len(result.output_ids) for result in results), "token")
    parts = [f"{texts}{tokens} ({', '.join(reasons)}), {counted(len(lengths), 'round')}"]
    if lengths and speed is not None:
        parts += [f"{sum(lengths) / len(lengths):.2f} committed tokens a round", f"{speed:.1f} tokens/s"]
    parts += [f"compile {seconds.compile:.1f} s", device()]
    parts[-1] += f", {layout} on {layout.size} devices" if layout.size > 1 else ""
    parts += [kernels_by_name(kernels)]
    return f"[{' | '.join(parts)}]"


def kernels_by_name(kernels: dict[str, str]) -> str:
    """What runs which operations, in short: one name where it is the same for all."""
    names = sorted(set(kernels.values()))
    if len(names) == 1:
        return f"kernels: {names[0]}"
    each = (
        (name, sorted(operation for operation in kernels if kernels[operation] == name)) for name in names
    )
    return "kernels: " + "; ".join(f"{name} ({', '.join(operations)})" for name, operations in each)


def reproduce(flags: argparse.Namespace, engine: Engine, task: Task, check: Exactness) -> str:
    """A command that shows the plain token at the first divergence."""
    words = ["python", "-m", "jddtree.generate", "--method", "ar", "--dtype", engine.pair.dtype]
    words += ["--target", str(flags.target)] if flags.target else []
    words += ["--prompt-ids", json.dumps(list(task.prompt))]
    words += ["--stop-ids", json.dumps(list(task.stop_ids)), "--ignore-eos"]
    for name, value in asdict(task.policy).items():
        words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    words += ["--max-new-tokens", str((check.first_divergence or 0) + 1), "--json", "-"]
    return shlex.join(words)


def device() -> str:
    """The accelerator's own name."""
    return jax.devices()[0].device_kind


if __name__ == "__main__":
    leave(main())
