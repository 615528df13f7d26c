"""The stages of training a pair, from flags (`scripts.pair.options`) to results."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jddtree.config import KimiK2Config, drafter_config, target_config
from jddtree.errors import InputError
from jddtree.load import Pair, load_pair, pair_places
from jddtree.tokenizer import load_tokenizer, stop_ids
from scripts.pair import options
from scripts.pair.answers import Amount, write_answers
from scripts.pair.blend import blend, weights_of
from scripts.pair.documents import ChatForm, Documents, Special, pack
from scripts.pair.fit_drafter import Training, fit_drafter
from scripts.pair.fit_target import Plan, fit_target, loss_by_kind
from scripts.pair.judge import Judge
from scripts.pair.mask import mask_token, without
from scripts.pair.mixture import held_out, judged_prompts, shares_of, thinned, with_corpus
from scripts.pair.publish import check_int4, shipped, shipped_drafter, write_json
from scripts.pair.sizes import SIZES, Shape, Size, default_shape, drafter_json, target_json
from scripts.pair.start import Start, read_start
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


def open_target(args: argparse.Namespace, folder: Path, say: Say) -> Pair:
    """A published or named target of any supported family, frozen, in the type to compute in."""
    folder, _ = pair_places(folder, None)
    return load_pair(folder, None, dtype=options.dtype_of(args).name, cache_dir=args.cache_dir, say=say)


def stops_of(pair: Pair) -> list[int]:
    """What ends the target's answers."""
    return stop_ids(pair.checkpoint.config, pair.checkpoint.generation_config, pair.tokenizer)


def answer(args: argparse.Namespace, pair: Pair, prompts: Documents, folder: Path, say: Say) -> Documents:
    """Texts that the target, as shipped, writes to prompts, kept in ``folder``."""
    prompts = thinned(prompts, shares_of(args.keep), args.seed)
    amount = Amount(args.answer_batches, args.answer_rows, args.answer_slots, args.seed)
    return write_answers(pair.target, prompts, stops_of(pair), amount, folder, say)


def open_start(args: argparse.Namespace, pair: Pair, folder: Path, say: Say) -> Start:
    """The published drafter that training begins from, grown as the flags for a drafter's size ask."""
    asked = {
        "num_layers": args.layers,
        "block_size": args.block,
        "target_layers": tuple(sorted(set(args.taps))) if args.taps else None,
        "num_heads": args.heads,
        "num_kv_heads": args.kv_heads,
        "head_dim": args.head_dim,
        "intermediate_size": args.mlp_width,
        "mask_token_id": args.mask_token,
    }
    return read_start(folder, asked, args.seed, pair, args.cache_dir, say)


def train_drafter(
    args: argparse.Namespace,
    pair: Pair,
    answers: Documents,
    train: Documents | None,
    state: Path,
    say: Say,
    start: Start | None = None,
) -> tuple[dict, Params, dict]:
    """Its config.json, float32 parameters, and under `drafter` what they get right in the decoder, as
    published; under `start` the same of the drafter that training began from, and its files' hashes.
    ``train``: a corpus to mix in. ``state``: the file to go on from.
    """
    if args.drafter_steps < 1:
        raise InputError(f"--drafter-steps must be 1 or more, not {args.drafter_steps}")
    kept, held = held_out(answers)
    texts = kept if train is None else with_corpus(kept, train, args.corpus_share, args.seed)
    stops = stops_of(pair)
    raw = start.raw if start else _new(args, pair, stops)
    drafter = drafter_config(raw)
    mask = drafter.mask_token_id
    texts = without(texts, mask, say)
    if args.int4:
        check_int4(drafter)
    # Of the special tokens only the filler of short rows is used, and that by no loss.
    rows = pack(texts, args.width, Special(drafter.vocab_size - 256), args.seed)
    say(f"{len(kept.lengths)} answers, {len(rows)} rows to train the drafter on, mask token {mask}")
    training = Training(
        args.drafter_steps,
        args.drafter_batch,
        args.anchors,
        args.drafter_rate,
        args.loss,
        args.seed,
        pair.dtype,
        args.int4,
    )
    prompts = judged_prompts(held, args.seed)
    judge = Judge(pair.target, drafter, prompts, stops, options.dtype_of(args))
    report: dict[str, Any] = {}
    if start:
        begun = judge(shipped_drafter(start.params, args.int4))
        say(f"at the start, in the decoder: {json.dumps(begun)}")
        report["start"] = {"files": start.files, "drafter": begun}
    params = fit_drafter(
        drafter,
        pair.target,
        rows,
        training,
        state=state,
        save_every=args.save_every,
        judge=lambda params: judge(shipped_drafter(params, args.int4)),
        judge_every=args.judge_every or max(1, args.drafter_steps // 3),
        say=say,
        start=start.params if start else None,
    )
    report["drafter"] = judge(shipped_drafter(params, args.int4))
    say(f"in the decoder: {json.dumps(report['drafter'])}")
    return raw, params, report


def _new(args: argparse.Namespace, pair: Pair, stops: list[int]) -> dict:
    """config.json of a drafter that flags and target describe."""
    config = pair.target.config
    usual = default_shape(config)
    shape = Shape(
        layers=_given(args.layers, usual.layers),
        block=_given(args.block, usual.block),
        taps=tuple(args.taps or usual.taps),
        heads=_given(args.heads, usual.heads),
        kv_heads=_given(args.kv_heads, usual.kv_heads),
        head_dim=_given(args.head_dim, usual.head_dim),
        width=_given(args.mlp_width, usual.width),
    )
    mask = mask_token(pair, stops, args.mask_token)
    return drafter_json(pair.checkpoint.config, config, shape, mask)


def _given(value: int | None, usual: int) -> int:
    """What a flag says, or the usual. Raises InputError for a size below 1."""
    if value is not None and value < 1:
        raise InputError(f"sizes of a drafter are 1 or more, not {value}")
    return usual if value is None else value
