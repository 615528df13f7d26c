"""`python -m jddtree.compare torch`: the same published folders in PyTorch and here, stage by stage."""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors import safe_open

from jddtree.checkpoint.published import is_published
from jddtree.command import json_writer, say
from jddtree.compare import faults, stages
from jddtree.compare.agreement import Agreement, agreement, text_verdict, tree_verdict
from jddtree.engine import DEFAULT_BUDGET, Engine
from jddtree.errors import InputError
from jddtree.load import is_named, smollm2_file
from jddtree.prompts import Wishes, as_ids, read_json_list, read_prompts

SCRIPT = Path(__file__).with_name("torch_stages.py")
PROMPTS = (
    "Tell me a short story about a lighthouse keeper.",
    "Write a Python function that adds two numbers. Include a docstring.",
)
RANDOM_IDS = 24  # tokens of a prompt where there is no tokenizer
BUG = "bug"


def add_flags(command: argparse.ArgumentParser, path: Any) -> None:
    """The flags of this comparison; ``path`` reads a folder's name."""
    add = command.add_argument
    add("--target", type=path, metavar="DIR", required=True, help="target, a published folder")
    add("--drafter", type=path, metavar="DIR", help="its DFlash drafter, a published folder")
    add("--prompts", type=path, metavar="FILE", help="JSONL as generate reads it (default: two short ones)")
    add("--prompt-ids", metavar="IDS", help="one prompt as a JSON list of token ids, or @FILE")
    add("--new", type=int, default=32, metavar="N", help="greedy tokens to compare (default 32)")
    add("--budget", type=int, default=DEFAULT_BUDGET, metavar="N", help="nodes (default %(default)s)")
    add("--topk", type=int, metavar="K", help="children of a node (default: no cap but the budget)")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="default float32")
    add("--device", default="cpu", help="PyTorch's device, for example cuda (default cpu)")
    add(
        "--torch-python",
        metavar="PATH",
        default=sys.executable,
        help="an interpreter that has torch, transformers and safetensors (default: this one)",
    )
    add(
        "--inject",
        choices=faults.FAULTS,
        metavar="FAULT",
        help=f"put a known fault in on our side, to see it found: {', '.join(faults.FAULTS)}",
    )
    add("--json", metavar="FILE", help="also write the result as JSON; - means standard output alone")


def main(flags: argparse.Namespace) -> int:
    """Run both sides, print a line a stage, and return 0, or 1 for a bug. Raises InputError."""
    for name, least in (("new", 1), ("budget", 1), ("topk", 1)):
        value = getattr(flags, name)
        if value is not None and value < least:
            raise InputError(f"--{name} must be {least} or more, not {value}")
    for folder in (flags.target, flags.drafter):
        if folder is not None and not is_published(folder):
            raise InputError(
                f"{folder} is not a published folder (config.json, *.safetensors), which PyTorch needs: "
                f"`python -m jddtree.convert {smollm2_file() if is_named(folder) else folder} DST --to hf` "
                "makes one"
            )
    python, write_json = _python_with_torch(flags.torch_python), json_writer(flags.json)
    engine = Engine.load(
        flags.target,
        flags.drafter,
        method="ar" if flags.drafter is None else "tree",
        budget=flags.budget,
        dtype=flags.dtype,
        say=say,
    )
    prompts = _prompts(flags, engine)
    longest = max(map(len, prompts)) + flags.new
    if longest > engine.pair.target.config.max_position:
        raise InputError(f"{longest} tokens exceed the context of {engine.pair.target.config.max_position}")
    request = {
        "target": str(flags.target.resolve()),
        "drafter": None if flags.drafter is None else str(flags.drafter.resolve()),
        "dtype": flags.dtype,
        "device": flags.device,
        "prompts": prompts,
        "new_tokens": flags.new,
        "budget": flags.budget,
        "topk": flags.topk,
    }
    with faults.injected(engine.pair, flags.inject, 1 + flags.budget) as pair:
        theirs, about = run_torch(python, request)
        changed = Engine(pair, method=engine.method.name, budget=flags.budget)
        ours = list(_our_stages(changed, prompts, theirs, flags))
    found = list(compared(theirs, ours, flags.dtype))
    report = {**about, **request, "inject": flags.inject, "stages": [row.as_json() for row in found]}
    report["verdict"] = verdict(found)
    write_json(report)
    if flags.json != "-":
        _show(report, found)
    return 1 if report["verdict"].startswith(BUG) else 0


FIND = """
from importlib.util import find_spec
for name in ("safetensors", "torch", "transformers"):
    if find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}")
"""
"""Not imported, which takes seconds: the run itself does that."""


def _python_with_torch(python: str) -> str:
    """``python``, if it has what the other side needs. Raises InputError."""
    if python == sys.executable and importlib.util.find_spec("torch") is None:
        raise InputError(
            "this Python has no torch: name one that has torch, transformers and safetensors "
            "with --torch-python"
        )
    try:
        result = subprocess.run([python, "-c", FIND], capture_output=True, text=True)
    except OSError as error:
        raise InputError(f"--torch-python {python} cannot be run: {error.strerror}") from None
    if result.returncode:
        raise InputError(
            f"--torch-python {python} must have torch, transformers and safetensors "
            f"({_last_line(result.stderr)})"
        )
    return python


def _prompts(flags: argparse.Namespace, engine: Engine) -> list[list[int]]:
    if flags.prompts is not None and flags.prompt_ids is not None:
        raise InputError("--prompts and --prompt-ids exclude each other")
    if flags.prompt_ids is not None:
        return [
            list(engine.task(as_ids(read_json_list(flags.prompt_ids, "--prompt-ids"), "--prompt-ids")).prompt)
        ]
    if flags.prompts is not None:
        read = read_prompts(flags.prompts, Wishes())
        for _, wishes, line in read:
            # What remains says how the prompt is read.
            if replace(wishes, raw=False, thinking=False, specials=False) != Wishes():
                raise InputError(f"{line}: a prompt is all that is compared; --new says how many tokens")
        return [list(wishes.tasks(engine, prompt, name, None)[0].prompt) for prompt, wishes, name in read]
    if engine.pair.tokenizer is None:
        say(f"{flags.target} has no tokenizer: two prompts of {RANDOM_IDS} random ids")
        ids = np.random.default_rng(0).integers(0, engine.pair.target.config.vocab_size, (2, RANDOM_IDS))
        return ids.tolist()
    return [list(engine.task(prompt).prompt) for prompt in PROMPTS]


def run_torch(python: str, request: Mapping[str, Any]) -> tuple[list[stages.Stages], dict[str, str]]:
    """The other side's stages, a prompt each, and what ran. Raises InputError with its last line."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "stages.safetensors")
        asked.write_text(json.dumps(request))
        # -P: the script's own folder must not shadow the libraries.
        command = [python, "-P", str(SCRIPT), str(asked), str(answered)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            last = ""
            for line in process.stderr:
                if line.startswith("PyTorch:"):
                    say(line.rstrip())
                last = line.strip() or last
        if process.returncode:
            raise InputError(f"the PyTorch side failed: {last}")
        if not answered.exists():
            raise InputError(f"{python} ran and wrote nothing: name a Python interpreter with --torch-python")
        found: list[stages.Stages] = [{} for _ in request["prompts"]]
        with safe_open(answered, "np") as arrays:
            for name in arrays.keys():  # noqa: SIM118 - safe_open is no mapping
                number, stage = name.split("/", 1)
                found[int(number)][stage] = arrays.get_tensor(name)
            return found, arrays.metadata()


def _our_stages(
    engine: Engine, prompts: Sequence[list[int]], theirs: Sequence[stages.Stages], flags: argparse.Namespace
) -> Iterator[stages.Stages]:
    tasks = [engine.task(prompt, max_new=flags.new, ignore_eos=True) for prompt in prompts]
    texts = [generation.output_ids for task in tasks for generation in engine.generate([task])]
    for number, (prompt, theirs_, text) in enumerate(zip(prompts, theirs, texts, strict=True)):
        say(f"JAX: prompt {number + 1} of {len(prompts)}")
        found = stages.run_prompt(
            engine.pair,
            prompt,
            int(theirs_["greedy ids"][0]),
            *(theirs_.get(f"tree {part}", np.zeros(0)).tolist() for part in ("tokens", "parents")),
            budget=flags.budget,
            topk=flags.topk,
            fault=flags.inject,
        )
        yield found | {"greedy ids": np.array(text, np.int32)}


def compared(
    theirs: Sequence[stages.Stages], ours: Sequence[stages.Stages], dtype: str
) -> Iterator[Agreement]:
    """A line a stage, over all prompts, in the order of the pipeline."""
    for name in ours[0]:
        pairs = [(theirs_[name], ours_[name]) for theirs_, ours_ in zip(theirs, ours, strict=True)]
        if name == "tree parents":
            continue
        if name == "tree tokens":
            yield tree_verdict(theirs, ours, dtype)
        elif name == "greedy ids":
            yield text_verdict(theirs, ours, dtype)
        else:
            yield agreement(name, pairs, dtype)


def verdict(found: Sequence[Agreement]) -> str:
    """equal, tie within rounding, or bug at the first stage that differs."""
    for row in found:
        if row.verdict == BUG:
            return f"{BUG} at stage {row.name!r}"
    return "tie within rounding" if any(row.verdict == "tie" for row in found) else "equal"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it failed"])[-1]


def _show(report: dict[str, Any], found: Sequence[Agreement]) -> None:
    table = Table(
        title=f"{report['target_class']} in transformers {report['transformers']}, torch {report['torch']}, "
        f"drafter: {report['drafter_code']}; {report['dtype']}"
    )
    for title in ("stage", "max abs", "rel L2", "cosine", "KL (nats)", "top-1", "limit", "verdict"):
        table.add_column(title, justify="left" if title == "stage" else "right")
    for row in found:
        table.add_row(*row.cells())
    console = Console()
    console.width = max(console.width, 100)
    console.print(table)
    for row in found:
        if row.note:
            print(f"{row.name}: {row.note}")
    print(report["verdict"])
