"""Train the byte-level BPE and encode the corpus with it.

Writes `tiktoken.model` (ranks) and `tokenizer_config.json` (Kimi's special names above the ranks) into --out,
and, with --encode, `train.npz.xz` and `valid.npz.xz` of token ids into that folder; with --parts N into N
folders `0`, `1` ... in it, each with a random share of the documents. --keep encodes with the tokenizer that
--out holds already.

    python -m scripts.train_tokenizer --corpus FOLDER --out FOLDER [--vocab N | --keep] [--encode FOLDER]
    [--parts N]
"""

import argparse
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, pre_tokenizers, trainers
from tokenizers.models import BPE

from jddtree.errors import InputError
from jddtree.tokenizer import SPECIAL_SLOTS, SPLIT_PATTERN, load_tokenizer
from scripts.pair.command import run
from scripts.pair.documents import KINDS, ChatForm, Documents, Special, encode_file

# Offsets above the ordinary tokens (spec kimi 6.1); every other slot is a reserved token.
NAMES = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "[EOT]",
    10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
    17: "<|im_middle|>",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    22: "<think>",
    23: "</think>",
    254: "[UNK]",
    255: "[PAD]",
}
VISIBLE = {11, 12, 13, 14, 15, 22, 23}  # tool-call and think tokens are not flagged special


def train_ranks(texts: Iterator[str], ranks: int) -> list[bytes]:
    """Token bytes by rank: the 256 bytes, then merges in the order learned.

    Digits are split one by one while learning, so that no merged token holds a digit: numbers are then read
    digit by digit, although Kimi's pattern would allow three in a token.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=ranks,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    if len(vocabulary) < ranks:
        raise InputError(
            f"the corpus gives only {len(vocabulary)} tokens, {ranks} were asked for: use more text or "
            "--vocab less"
        )
    byte_of = {letter: byte for byte, letter in enumerate(_byte_letters())}
    by_rank = sorted(vocabulary, key=vocabulary.__getitem__)
    return [bytes(byte_of[letter] for letter in token) for token in by_rank]


def _byte_letters() -> list[str]:
    """GPT-2's printable letter of every byte: printable Latin-1 as it is, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_tokenizer(folder: Path, ranks: list[bytes]) -> None:
    """Write `tiktoken.model` and `tokenizer_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks)]
    (folder / "tiktoken.model").write_text("".join(lines))
    named = {
        str(len(ranks) + offset): {"content": name, "special": offset not in VISIBLE}
        for offset, name in NAMES.items()
    }
    config = {
        "added_tokens_decoder": named,
        "bos_token": "[BOS]",
        "eos_token": "<|im_end|>",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "model_max_length": 1_000_000,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def _texts(path: Path, every: int) -> Iterator[str]:
    """Prompts and texts of one record in ``every``, and the role words that each chat holds."""
    if not path.is_file():
        raise InputError(f"{path} does not exist: --corpus is a folder that scripts.build_corpus wrote")
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % every == 0:
                record = json.loads(line)
                yield from ("user", record["prompt"], "assistant", record["text"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder with train.jsonl and valid.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tokenizer files")
    parser.add_argument(
        "--vocab", type=int, default=6144, help="vocabulary with the 256 special slots, a multiple of 8"
    )
    parser.add_argument("--every", type=int, default=3, help="learn from one record in so many")
    parser.add_argument("--encode", type=Path, help="folder for the encoded corpus")
    parser.add_argument("--keep", action="store_true", help="learn nothing: the tokenizer is in --out")
    parser.add_argument("--parts", type=int, default=1, help="folders to spread the encoded corpus over")
    parser.add_argument("--longest", type=int, default=512, help="longest encoded document")
    args = parser.parse_args(arguments)
    if args.vocab % 8 or args.vocab < 512 + 8:
        raise InputError("--vocab must be a multiple of 8 and at least 520")

    if not args.keep:
        ranks = train_ranks(_texts(args.corpus / "train.jsonl", args.every), args.vocab - SPECIAL_SLOTS)
        write_tokenizer(args.out, ranks)
        print(f"{len(ranks)} ranks and {SPECIAL_SLOTS} special slots written to {args.out}")
    if args.encode:
        tokenizer = load_tokenizer(args.out)
        if tokenizer is None:
            raise InputError(f"{args.out} holds no tokenizer: leave --keep out")
        form = ChatForm.of(tokenizer, Special(tokenizer.plain.get_vocab_size()))
        for part in ("train", "valid"):
            documents = encode_file(args.corpus / f"{part}.jsonl", form, args.longest)
            _report(part, documents)
            for number in range(args.parts):
                folder = args.encode / str(number) if args.parts > 1 else args.encode
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{part}.npz.xz"
                documents.take(np.arange(number, len(documents.lengths), args.parts)).save(path)
                print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


def _report(part: str, documents: Documents) -> None:
    counts = np.bincount(documents.kinds, documents.lengths, len(KINDS)) / 1e6
    kinds = ", ".join(f"{kind} {count:.2f}" for kind, count in zip(KINDS, counts, strict=True) if count)
    print(
        f"{part}: {len(documents.lengths)} documents, {counts.sum():.2f} M tokens ({kinds})",
        flush=True,
    )


if __name__ == "__main__":
    run(main)
