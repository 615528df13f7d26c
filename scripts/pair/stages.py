"""The stages of training a pair, from flags (`scripts.pair.options`) to results."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from jddtree.config import KimiK2Config, drafter_config, target_config
from jddtree.errors import InputError
from jddtree.tokenizer import load_tokenizer
from scripts.pair import options
from scripts.pair.answers import write_answers
from scripts.pair.blend import blend, weights_of
from scripts.pair.documents import ChatForm, Documents
from scripts.pair.fit_drafter import fit_drafter, slots_right
from scripts.pair.fit_target import Plan, fit_target, loss_by_kind
from scripts.pair.mixture import drafter_rows
from scripts.pair.publish import shipped, write_json
from scripts.pair.sizes import SIZES, Size, drafter_json, target_json
from scripts.pair.target import Params, rounded
from scripts.pair.unlikelihood import Prompts

Say = Callable[[str], None]


def size_of(args: argparse.Namespace, tokenizer_folder: Path) -> Size:
    """The size that --size names. Raises InputError when the tokenizer has another vocabulary."""
    size, tokenizer = SIZES[args.size], load_tokenizer(tokenizer_folder)
    vocab = tokenizer.backend.get_vocab_size() if tokenizer else 0
    if size.vocab != vocab:
        raise InputError(
            f"size {args.size} has a vocabulary of {size.vocab}, the tokenizer in {tokenizer_folder} one of "
            f"{vocab}: train it with --vocab {size.vocab}"
        )
    return size


def corpus(args: argparse.Namespace, part: str) -> Documents:
    """The encoded "train" or "valid" part of all folders."""
    return Documents.load_part(args.data, part)


def config_of(size: Size) -> KimiK2Config:
    """The target's configuration."""
    config = target_config(target_json(size))
    assert isinstance(config, KimiK2Config)
    return config


def train_target(args: argparse.Namespace, size: Size, train: Documents, say: Say) -> Params:
    """Float32 parameters. Writes `target_training.json` into --out, and the state to go on from."""
    tokenizer = load_tokenizer(args.tokenizer)
    assert tokenizer is not None
    plan = Plan(
        steps=args.target_steps,
        batch=args.batch,
        rate=args.target_rate,
        seed=args.seed,
        rounds=args.unlike_rounds,
        round_steps=args.unlike_steps,
        weight=args.unlike_weight,
        texts=args.unlike_texts,
        slots=args.unlike_slots,
        save_every=args.save_every,
    )
    rows = blend(train, weights_of(args.weights), args.width, size.special, args.seed)
    filled = sum(rows.tokens.values()) / rows.rows.tokens.size
    say(f"{sum(rows.tokens.values()) / 1e6:.1f} M tokens packed, {filled:.1%} of the rows filled")
    kinds = rows.report(plan.steps * plan.batch * args.width * filled)
    for kind, row in kinds.items():
        say(
            f"{kind}: {row['tokens'] / 1e6:.2f} M tokens, {row['share']:.1%} of what is trained on, seen "
            f"{row['seen']:.2f} times"
        )
    params, report = fit_target(
        config_of(size),
        rows,
        Prompts(train, ChatForm.of(tokenizer, size.special), args.unlike_slots // 2),
        corpus(args, "valid"),
        plan,
        cudnn=options.on_gpu(),
        dtype=options.dtype_of(args),
        state=args.out / "target_state.safetensors",
        say=say,
    )
    if report["distinct"] or not plan.rounds:  # not when the run had ended before
        write_json(args.out / "target_training.json", {"kinds": kinds} | report)
    return params


def judge_target(
    args: argparse.Namespace, size: Size, params: Params, say: Say
) -> dict[str, dict[str, float]]:
    """Loss by kind of the held-out text, before and after INT4: `loss_float`, `loss_int4`."""
    valid, dtype = corpus(args, "valid"), options.dtype_of(args)
    found = {}
    for name, those in {"float": params, "int4": shipped(params)}.items():
        cast = rounded(those, dtype)
        found[f"loss_{name}"] = loss_by_kind(
            config_of(size), cast, valid, size.special, args.width, args.batch, options.on_gpu()
        )
        say(f"loss, {name}: " + json.dumps({k: round(v, 3) for k, v in found[f"loss_{name}"].items()}))
    return found


def answer(args: argparse.Namespace, size: Size, target: Params, train: Documents, say: Say) -> Documents:
    """Texts that the target, as shipped, writes to the corpus's prompts."""
    return write_answers(
        config_of(size),
        target,
        train,
        size.special,
        batches=args.answer_batches,
        rows=args.answer_rows,
        slots=args.answer_slots,
        seed=args.seed,
        say=say,
    )


def train_drafter(
    args: argparse.Namespace, size: Size, target: Params, answers: Documents, train: Documents, say: Say
) -> tuple[Params, dict]:
    """Float32 parameters, and what they get right in held-out rows: `drafter_answers`, `drafter_corpus`."""
    config, target_config_, cudnn = drafter_config(drafter_json(size)), config_of(size), options.on_gpu()
    dtype = options.dtype_of(args)
    rows, held = drafter_rows(answers, train, args.corpus_share, args.width, size.special, args.seed)
    say(f"{len(answers.lengths)} answers, {len(rows)} rows to train the drafter on")
    params = fit_drafter(
        config,
        target_config_,
        target,
        rows,
        steps=args.drafter_steps,
        batch=args.drafter_batch,
        anchors=args.anchors,
        rate=args.drafter_rate,
        seed=args.seed,
        cudnn=cudnn,
        dtype=dtype,
        say=say,
    )
    cast = {name: value.astype(dtype) for name, value in params.items()}
    report = {}
    for name, part in held.items():
        batch = min(args.drafter_batch, len(part))
        report[f"drafter_{name}"] = slots_right(
            config, target_config_, cast, target, part, batch, args.anchors, cudnn
        )
        say(f"drafter on {name}: " + json.dumps(report[f"drafter_{name}"]))
    return params, report
