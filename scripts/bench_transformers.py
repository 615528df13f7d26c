"""Time plain decoding in transformers: eager, and compiled with a static cache. Needs torch and transformers.

The other side of `python -m jddtree.sweep --ignore-eos` for a target that both can load: the same first
prompts of the bundled suite through the same chat template, greedy, one at a time, each text to its full
length. Prefill is timed with the rest, warm-up and compilation apart. Prints a line and writes JSON after
every repetition, so that a run which is cut off leaves what it had measured. transformers compiles on
accelerators alone: on a CPU the second is the static cache without compilation.

    python scripts/bench_transformers.py --target FOLDER [--limit 8] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

PROMPTS = Path(__file__).parents[1] / "jddtree" / "sweep" / "prompts.json"


def measure(
    model: Any, prompts: list[Any], tokens: int, repetitions: int, static: bool
) -> Iterator[dict[str, Any]]:
    """After every repetition over all prompts: the tokens a second of those so far, their median, warm-up
    seconds, and the ids.
    """
    settings: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    if static:
        settings |= {"cache_implementation": "static"}

    def run(prompts: list[Any]) -> list[list[int]]:
        found = []
        for ids in prompts:
            with torch.inference_mode():
                out = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
            found.append(out[0, ids.shape[1] :].tolist())
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return found

    begin = time.perf_counter()
    # A static cache stays as long as the longest yet, so nothing is compiled again for the other prompts.
    longest = max(prompts, key=lambda ids: ids.shape[1])
    run([longest, longest])
    warm_up = time.perf_counter() - begin
    speeds: list[float] = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        outputs = run(prompts)
        speeds.append(sum(map(len, outputs)) / (time.perf_counter() - begin))
        yield {
            "tokens_per_second": statistics.median(speeds),
            "repetitions": list(speeds),
            "warm_up_seconds": warm_up,
            "outputs": outputs,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="published folder")
    parser.add_argument("--limit", type=int, default=8, help="the first N prompts, kinds in turn")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.target)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.target, dtype=getattr(torch, args.dtype))
    model = model.to(args.device).eval()
    kinds = json.loads(PROMPTS.read_text(encoding="utf-8")).values()
    chosen = [text for turn in zip(*kinds, strict=True) for text in turn][: args.limit]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt"
        )["input_ids"].to(args.device)
        for text in chosen
    ]
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
    report: dict[str, Any] = {
        "device": name,
        "dtype": args.dtype,
        "prompts": chosen,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    compiled = "static cache" if args.device == "cpu" else "static cache, compiled"
    for label, static in (("eager", False), (compiled, True)):
        for found in measure(model, prompts, args.max_new_tokens, args.repetitions, static):
            report[label] = found
            speed, warm = found["tokens_per_second"], found["warm_up_seconds"]
            print(
                f"{label:24} {speed:8.1f} tokens/s  (median of {len(found['repetitions'])}; "
                f"warm-up {warm:.1f} s)  {name}, {args.dtype}",
                flush=True,
            )
            if args.json:
                args.json.write_text(json.dumps(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
