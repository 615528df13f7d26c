"""The whole way at toy size: text, tokenizer, target, INT4, answers, drafter, the real decoder."""

import gzip
import json
import lzma
import math
import random
import zipfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree.errors import InputError
from jddtree.load import load_pair
from jddtree.tokenizer import load_tokenizer
from pallas_kernels.tree_attention.api import pack_mask
from scripts import (
    build_corpus,
    eval_pair,
    judge_target,
    quantize_target,
    train_drafter,
    train_pair,
    train_target,
    train_tokenizer,
    write_answers,
    write_card,
)
from scripts.pair import stages
from scripts.pair.answers import read_answers
from scripts.pair.documents import KINDS, Documents
from scripts.pair.perplexity import perplexity_by_kind
from scripts.pair.publish import read_target
from scripts.pair.target import forward, head_logits
from tests import tiny

STAGE = ["--size", "toy", "--width", "64", "--batch", "8"]
TARGET = ["--target-steps", "12", "--unlike-rounds", "2", "--unlike-steps", "2"]
TARGET += ["--unlike-texts", "32", "--unlike-slots", "48"]
ANSWERS = ["--answer-batches", "2", "--answer-rows", "8", "--answer-slots", "48"]
DRAFTER = ["--drafter-steps", "6", "--drafter-batch", "4", "--anchors", "6"]
SECRET = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with teacher text, benchmark wheel, corpus, tokenizer and encoded corpus."""
    home = tmp_path_factory.mktemp("pair")
    rng = random.Random(0)
    words = (
        "red green old small fox boat river house door tree cat bird ran saw found liked near under".split()
    )
    records = [
        {"kind": KINDS[i % 4], "prompt": f"Tell me about the {words[i % 18]}, part {i}.", "text": ""}
        for i in range(240)
    ]
    for record in records:
        lines = [" ".join(rng.choices(words, k=rng.randint(3, 6))) for _ in range(rng.randint(1, 3))]
        record["text"] = ". ".join(line.capitalize() for line in lines) + "."
    held_out = json.loads(build_corpus.PROMPTS.read_text())["story"][0]
    records += [
        {"kind": "story", "prompt": "Tell me a secret.", "text": f"It goes {SECRET} and on."},
        {"kind": "story", "prompt": held_out, "text": "A crow."},
    ]
    (home / "teacher").mkdir()
    with lzma.open(home / "teacher" / "part.jsonl.xz", "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    (home / "wheels").mkdir()
    with zipfile.ZipFile(home / "wheels" / "x.whl", "w") as archive:
        task = gzip.compress(json.dumps({"prompt": f"def f(): return '{SECRET}'"}).encode())
        archive.writestr("x/data/HumanEval.jsonl.gz", task)
    folders = {"--teacher": "teacher", "--out": "corpus", "--benchmarks": "wheels"}
    flags = [part for flag, name in folders.items() for part in (flag, str(home / name))]
    build_corpus.main([*flags, "--problems", "120", "--code-bytes", "20000"])
    # A short validation part would lack kinds.
    lines = (home / "corpus" / "train.jsonl").read_text().splitlines(keepends=True)
    (home / "corpus" / "valid.jsonl").write_text("".join(lines[:60]))
    folders = {"--corpus": "corpus", "--out": "tokenizer", "--encode": "data"}
    flags = [part for flag, name in folders.items() for part in (flag, str(home / name))]
    train_tokenizer.main([*flags, "--vocab", "640", "--every", "1", "--longest", "64"])
    return home


@pytest.fixture(scope="module")
def pair(home: Path) -> Path:
    """The folder that one run of everything wrote."""
    flags = [
        "--data",
        str(home / "data"),
        "--tokenizer",
        str(home / "tokenizer"),
        "--out",
        str(home / "pair"),
    ]
    cache = ["--cache-dir", str(home / "cache")]
    train_pair.main([*flags, *STAGE, *TARGET, *ANSWERS, *DRAFTER, *cache])
    return home / "pair"


def test_corpus_leaves_out_benchmark_text_and_held_out_prompts(home):
    text = (home / "corpus" / "train.jsonl").read_text()
    assert "Tell me about the red, part 0." in text
    assert SECRET not in text
    assert "noisy crow" not in text


def test_numbers_are_read_digit_by_digit(home):
    tokenizer = load_tokenizer(home / "tokenizer")
    digits = {tokenizer.encode(digit, specials=False)[0] for digit in "0123456789"}
    assert digits.issuperset(tokenizer.encode("4711", specials=False))


def test_encoded_chats_are_what_the_template_renders(home):
    documents = Documents.load(home / "data" / "train.npz.xz")
    tokenizer = load_tokenizer(home / "tokenizer")
    form = "<|im_user|>user<|im_middle|>Tell me about"
    starts = documents.starts()
    texts = [
        tokenizer.decode(documents.tokens[s : s + n].tolist(), skip_special=False)
        for s, n in zip(starts, documents.lengths, strict=True)
    ]
    chats = [text for text in texts if text.startswith(form)]
    assert len(chats) > 100
    assert all(".<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>" in text for text in chats)
    assert all(text.endswith(".<|im_end|>") for text in chats)
    plain = [text for text, prompt in zip(texts, documents.prompts, strict=True) if not prompt]
    assert any(text.endswith("[EOS]") for text in plain)
    assert not any("<|im_user|>" in text for text in plain)


def test_published_target_computes_what_training_computed(home, pair):
    ids = jnp.arange(20, 44, dtype=jnp.int32)[None]
    positions = jnp.arange(24, dtype=jnp.int32)[None]
    params = {name: value.astype(jnp.float32) for name, value in read_target(pair / "k2-mini").items()}
    loaded = load_pair(
        pair / "k2-mini",
        pair / "k2-mini-dflash",
        dtype="float32",
        cache_dir=home / "cache",
        say=lambda line: None,
    )
    target = loaded.target
    ours = jax.jit(partial(forward, target.config, cudnn=False))(params, ids, positions)
    mask = pack_mask(np.tril(np.ones((24, 24), bool))[None])
    cache = target.new_cache(1, 32, jnp.dtype(jnp.float32))
    valid, lengths = jnp.ones((1, 24), bool), jnp.zeros(1, jnp.int32)
    run = jax.jit(lambda *inputs: target(*inputs, (0, 1)))
    theirs = run(ids, positions, valid, mask, cache, lengths)
    np.testing.assert_allclose(head_logits(params, ours.hidden), target.logits(theirs.hidden), atol=2e-4)
    np.testing.assert_allclose(jnp.concatenate(ours.layers[:2], axis=-1), theirs.features, atol=2e-4)


def test_report_has_losses_and_slots(pair):
    report = json.loads((pair / "training.json").read_text())
    kinds = set(report["loss_int4"])
    assert kinds == set(report["loss_float"])
    assert {"story", "maths"} <= kinds
    assert all(abs(report["loss_int4"][kind] - report["loss_float"][kind]) < 0.1 for kind in kinds)
    assert report["answers"]["texts"] == 16
    assert len(report["drafter"]["slots"]) == 3
    assert 1 <= report["drafter"]["committed"] <= 4


def test_model_card_gets_the_run(pair, tmp_path):
    card = tmp_path / "card.md"
    sections = [
        f"<!-- begin {name} k2-mini -->\n<!-- end {name} k2-mini -->\n" for name in ("loss", "text", "loops")
    ]
    card.write_text("".join(sections))
    write_card.main(["--run", str(pair), "--card", str(card)])
    lines = card.read_text().splitlines()
    assert lines[1].startswith("| nats a token | story | explain | chat | code | maths |")
    assert any(line.startswith("| INT4's cost | ") for line in lines)
    assert any(line.startswith("| maths | 0.0 | ") for line in lines)
    rounds = [line.split(" | ")[0] for line in lines[lines.index(sections[2].splitlines()[0]) :]]
    assert rounds[1] == "| steps of 12" and rounds[3:6] == ["| 8", "| 10", "| 12"]


def test_decoder_runs_the_pair_exactly(home, pair, tmp_path, capsys):
    prompts = {"story": ["Tell me about the fox."], "maths": ["What is 2 + 3?", "What is 4 + 9?", "?"]}
    for kind, texts in prompts.items():
        lines = [json.dumps({"id": number, "prompt": text}) for number, text in enumerate(texts)]
        (tmp_path / f"{kind}.jsonl").write_text("\n".join(lines))
    (tmp_path / "answers.json").write_text(json.dumps({"What is 2 + 3?": 5}))
    card = tmp_path / "card.md"
    card.write_text("Before\n<!-- begin eval_pair k2-mini -->\nold\n<!-- end eval_pair k2-mini -->\nAfter\n")
    flags = ["--target", str(pair / "k2-mini"), "--drafter", str(pair / "k2-mini-dflash")]
    flags += ["--budgets", "2", "5", "--seeds", "2", "--rows", "4", "--max-new-tokens", "14"]
    files = ["--prompts", *(str(tmp_path / f"{kind}.jsonl") for kind in prompts), "--limit", "2"]
    files += ["--answers", str(tmp_path / "answers.json")]
    files += ["--json", str(tmp_path / "out.json"), "--table", str(card), "--data", str(home / "data")]
    eval_pair.main([*flags, *files, "--perplexity-texts", "2", "--cache-dir", str(home / "cache")])
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["different"] == []
    greedy, sampled = report["temperatures"]["0"], report["temperatures"]["1"]
    assert (greedy["total"]["texts"], sampled["total"]["texts"]) == (1, 2)
    for name in ("chain", "tree(2)", "tree(5)"):
        average, reached = sampled["story"]["committed"][name], sampled["story"]["reached"][name]
        assert 1 <= average <= 4
        assert average == pytest.approx(1 + sum(reached)) and reached == sorted(reached, reverse=True)
    assert len(greedy["maths"]["slots"]) == 3
    assert (greedy["maths"]["asked"], sampled["maths"]["asked"], greedy["story"]["right"]) == (1, 2, None)
    assert len(report["texts"]) == 3 + 6
    assert len({one["text"] for one in report["texts"] if one["prompt"] == "Tell me about the fox."}) == 3
    losses = json.loads((pair / "training.json").read_text())["loss_int4"]
    assert set(report["perplexity"]) == set(losses)
    assert "tree(5)" in capsys.readouterr().out
    before, shown, after = card.read_text().partition("| story | 1 | ")
    assert before.startswith("Before") and "old" not in before and shown and after.endswith("After\n")
    assert "| kind | chain | tree(2) | tree(5) |" in after


def test_perplexity_is_that_of_the_training_form(home, pair):
    """Of the same documents, under the decoding model."""
    valid = Documents.load(home / "data" / "valid.npz.xz")
    target = load_pair(
        pair / "k2-mini", None, dtype="float32", cache_dir=home / "cache", say=lambda line: None
    ).target
    ours = perplexity_by_kind(target, valid, texts=99, rows=8, width=64, dtype=jnp.dtype(jnp.float32))
    losses = json.loads((pair / "training.json").read_text())["loss_int4"]
    assert ours == pytest.approx({kind: math.exp(loss) for kind, loss in losses.items()}, rel=1e-3)


def test_judged_texts_are_counted(home, pair):
    flags = [
        "--data",
        str(home / "data"),
        "--target",
        str(pair / "k2-mini"),
        "--json",
        str(home / "judged.json"),
    ]
    judge_target.main([*flags, *STAGE, "--texts", "3", "--slots", "40", "--temperatures", "1"])
    rows = {row["kind"]: row for row in json.loads((home / "judged.json").read_text())["rows"]}
    assert {"story", "maths"} <= set(rows)
    assert rows["story"]["texts"] == len(rows["story"]["written"]) == 3
    assert rows["story"]["right"] == "-"
    assert 0 <= rows["maths"]["right"] <= 3
    assert all(0 < row["distinct"] <= 1 for row in rows.values())


def test_stages_one_by_one_give_the_same_pair(home, pair, monkeypatch):
    monkeypatch.setattr(stages, "Judge", lambda *arguments: lambda params: {})  # has had its turn in `pair`
    data = ["--data", str(home / "data"), *STAGE]
    tokenizer = ["--tokenizer", str(home / "tokenizer")]
    to = {name: str(home / name) for name in ("float", "target", "answers", "drafter")}
    train_target.main([*data, *tokenizer, *TARGET, "--out", to["float"]])
    quantize_target.main([*data, *tokenizer, "--target", to["float"], "--out", to["target"]])
    given = ["--target", to["target"], "--cache-dir", str(home / "cache"), *data[:-6]]
    write_answers.main([*given, *ANSWERS, "--out", to["answers"]])
    drafter = ["--width", "64", "--answers", to["answers"], "--out", to["drafter"]]
    train_drafter.main([*given, *DRAFTER, *drafter])
    # Answers that are there are kept, whatever a second run would write.
    kept = (home / "answers" / "answers-0001.safetensors").stat()
    (home / "answers" / "answers-0000.safetensors").unlink()
    write_answers.main([*given, *ANSWERS, "--out", to["answers"]])
    assert (home / "answers" / "answers-0001.safetensors").stat().st_mtime_ns == kept.st_mtime_ns
    ours, theirs = read_answers(home / "answers"), read_answers(pair / "answers")
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    for folder, together in (("target", "k2-mini"), ("drafter", "k2-mini-dflash")):
        for file in sorted((pair / together).iterdir()):
            assert (home / folder / file.name).read_bytes() == file.read_bytes(), file.name


def test_another_vocabulary_is_refused(home):
    with pytest.raises(InputError, match="--vocab 6144"):
        train_target.main(
            ["--data", str(home / "data"), "--tokenizer", str(home / "tokenizer"), "--out", str(home / "no")]
        )


@pytest.mark.parametrize(
    ("script", "flags", "reason"),
    [
        (train_tokenizer, ["--corpus", "/nowhere", "--out", "a"], "/nowhere/train.jsonl does not exist"),
        (build_corpus, ["--teacher", "a", "--out", "b", "--problems", "-1"], "--problems must be 0 or more"),
        (build_corpus, ["--teacher", "a", "--out", "b", "--sources", "/nowhere"], "/nowhere is no folder"),
        (eval_pair, ["--data", "/nowhere"], "/nowhere"),
        (eval_pair, ["--prompts", "/nowhere"], "/nowhere cannot be read"),
        (eval_pair, ["--limit", "0"], "--limit must be 1 or more"),
        (eval_pair, ["--table", "/nowhere"], 'has no lines "<!-- begin eval_pair k2-mini -->"'),
        (eval_pair, ["--target", str(tiny.TRAINED / "target")], "there is no drafter for .*: give --drafter"),
    ],
)
def test_bad_input_is_refused_before_the_work(script, flags, reason):
    with pytest.raises(InputError, match=reason):
        script.main(flags)
