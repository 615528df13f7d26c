"""Lets a target answer prompts, for the drafter to learn from: one file a batch."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from jddtree.errors import InputError
from jddtree.models.target import Target
from scripts.pair.documents import Documents
from scripts.pair.prompts import id_dtype
from scripts.pair.resume import fingerprint, load, save
from scripts.pair.writer import PLAIN, Writer

TEMPERATURES, SHARES = (0.0, 0.7, 1.0), (0.3, 0.3, 0.4)
FIELDS = ("tokens", "lengths", "prompts", "kinds")


@dataclass(frozen=True)
class Amount:
    """``batches`` of ``rows`` texts, each at most ``slots`` tokens with its prompt."""

    batches: int
    rows: int
    slots: int
    seed: int


def write_answers(
    target: Target,
    documents: Documents,
    stop_ids: Sequence[int],
    amount: Amount,
    folder: Path,
    say: Callable[[str], None],
) -> Documents:
    """Answers to random prompts of ``documents``, a file a batch in ``folder``; files already there are kept.

    No prompt comes twice before each has come once. Temperatures follow TEMPERATURES and SHARES. A text that
    does not stop is kept, cut at ``slots``.

    Raises InputError when the folder holds files of other prompts, flags or target.
    """
    rows, slots = amount.rows, amount.slots
    usable = np.flatnonzero((documents.prompts > 0) & (documents.prompts < slots // 2))
    if not len(usable):
        raise InputError(f"no prompt is shorter than half of the {slots} tokens of a text")
    rng = np.random.default_rng(amount.seed)
    total = amount.batches * rows
    turns = [rng.permutation(usable) for _ in range(-(-total // len(usable)))]
    # Prompts of like length go together, so that little is fed twice; batches come in random order.
    chosen = np.concatenate(turns)[:total]
    chosen = chosen[np.argsort(documents.prompts[chosen], kind="stable")].reshape(amount.batches, rows)
    chosen = chosen[rng.permutation(amount.batches)]
    warm = rng.choice(TEMPERATURES, chosen.shape, p=SHARES)
    some = np.asarray(target.embed(jnp.arange(64)[None] % target.config.vocab_size), np.float32)
    mark = fingerprint({"stops": list(stop_ids), "slots": slots}, chosen, warm, documents.tokens, some)
    starts = documents.starts()
    writer: Writer | None = None
    written, begin = 0, time.time()
    for number, batch in enumerate(chosen):
        file = folder / f"answers-{number:04}.safetensors"
        if load(file, mark, dict.fromkeys(FIELDS, 0)) is not None:
            continue
        if writer is None:
            writer = Writer(target, [PLAIN], rows=rows, slots=slots, stop_ids=stop_ids)
        prompts = [documents.tokens[starts[i] : starts[i] + documents.prompts[i]].tolist() for i in batch]
        texts = writer.write(prompts, [PLAIN] * rows, warm[number].tolist(), seed=(amount.seed, number))
        answers = Documents.of(
            (
                (
                    [*prompt, *text.ids, *([] if text.stop is None else [text.stop])],
                    len(prompt),
                    int(documents.kinds[i]),
                )
                for prompt, text, i in zip(prompts, texts, batch, strict=True)
            ),
            slots,
            id_dtype(target.config),
        )
        save(file, mark, number, {name: getattr(answers, name) for name in FIELDS})
        written += int(np.sum(answers.lengths - answers.prompts))
        say(
            f"answers {number + 1}/{amount.batches}  {written / 1e6:.2f} M tokens  "
            f"{written / (time.time() - begin) / 1e3:.0f}k tokens/s"
        )
    return read_answers(folder)


def save_texts(texts: Documents, folder: Path) -> None:
    """Keep texts as one batch of answers. Raises InputError when there are none."""
    if not len(texts.lengths):
        raise InputError("no text is left: is every line without prompt or text, or too long?")
    arrays = {name: getattr(texts, name) for name in FIELDS}
    save(folder / "answers-0000.safetensors", fingerprint({}, *arrays.values()), 0, arrays)


def read_answers(*folders: Path) -> Documents:
    """What `write_answers` wrote. Raises InputError when a folder holds nothing."""
    files: list[Path] = []
    for folder in folders:
        found = sorted(folder.glob("answers-*.safetensors"))
        if not found:
            raise InputError(f"{folder} holds no answers: run scripts.write_answers first")
        files += found
    parts = [load_file(file) for file in files]
    return Documents(*(np.concatenate([part[name] for part in parts]) for name in FIELDS))
