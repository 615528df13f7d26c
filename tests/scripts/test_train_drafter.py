"""A drafter for a target that these scripts did not train: its prompts, its answers, INT4, the decoder."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jddtree.checkpoint.skeleton import array_paths
from jddtree.config import drafter_config
from jddtree.errors import InputError
from jddtree.load import load_pair
from scripts import train_drafter, write_answers
from scripts.pair import publish
from scripts.pair.answers import read_answers
from tests import tiny

STOP = 300
TARGET = tiny.QWEN3 | {"vocab_size": 600, "eos_token_id": STOP, "num_hidden_layers": 3}
UNUSED = 512  # the first id after the tokenizer's 256 bytes and 256 special slots
SHAPE = ["--layers", "1", "--block", "4", "--taps", "0", "--heads", "2", "--kv-heads", "1"]
SHAPE += ["--head-dim", "16", "--mlp-width", "32"]
SIZES = ["--drafter-steps", "4", "--drafter-batch", "2", "--anchors", "5", "--width", "40"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a published target, prompts and answers."""
    home = tmp_path_factory.mktemp("drafter")
    folder = home / "target"
    folder.mkdir()
    model = tiny.target(TARGET)
    names = {path: path if path == "lm_head.weight" else f"model.{path}" for path, _ in array_paths(model)}
    tensors = {names[path]: np.asarray(leaf) for path, leaf in array_paths(model)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TARGET))
    tiny.write_tokenizer(folder, [])
    (folder / "chat_template.jinja").write_text("{% for m in messages %}({{ m['content'] }}){% endfor %}")
    records = [{"kind": ("story", "code")[i % 2], "prompt": f"{i}?", "text": ""} for i in range(12)]
    lines = "\n".join(json.dumps(record) for record in [*records, {"kind": "code", "prompt": ""}])
    (home / "prompts.jsonl").write_text(lines)
    write(home, home / "prompts.jsonl", home / "answers")
    return home


def write(home: Path, prompts: Path, out: Path) -> None:
    common = ["--target", str(home / "target"), "--cache-dir", str(home / "cache")]
    size = ["--answer-batches", "2", "--answer-rows", "8", "--answer-slots", "20"]
    write_answers.main([*common, "--prompts", str(prompts), "--out", str(out), *size])


def train(home: Path, *flags: str) -> None:
    common = ["--target", str(home / "target"), "--cache-dir", str(home / "cache")]
    train_drafter.main([*common, "--answers", str(home / "answers"), *SIZES, *SHAPE, *flags])


def test_answers_follow_the_targets_own_template(home):
    answers = read_answers(home / "answers")
    texts = [
        answers.tokens[start : start + length].tolist()
        for start, length in zip(answers.starts(), answers.lengths, strict=True)
    ]
    prompts = {bytes(text[:n]).decode() for text, n in zip(texts, answers.prompts, strict=True)}
    assert len(texts) == 16
    assert prompts == {f"({i}?)" for i in range(12)}
    assert all(len(text) == 20 or text[-1] == STOP for text in texts)


def test_an_int4_drafter_loads_and_computes_what_was_published(home, monkeypatch):
    monkeypatch.setattr("scripts.pair.judge.NEW_TOKENS", 8)
    kept: dict[str, jax.Array] = {}

    def write_drafter(folder, raw, params, int4) -> None:
        kept.update(params)
        publish.write_drafter(folder, raw, params, int4)

    monkeypatch.setattr(train_drafter, "write_drafter", write_drafter)
    train(home, "--out", str(home / "int4"), "--int4", "--judge-every", "2")
    report = json.loads((home / "int4" / "training.json").read_text())
    assert set(report) == {"drafter"}
    assert not (home / "int4" / "drafter.state").exists()
    packed = load_file(home / "int4" / "model.safetensors")
    assert packed["layers.0.mlp.down_proj.weight_shape"].tolist() == [32, 32]
    raw = json.loads((home / "int4" / "config.json").read_text())
    assert raw["quantization_config"]["format"] == "pack-quantized"
    assert drafter_config(raw).mask_token_id == UNUSED
    pair = load_pair(
        home / "target", home / "int4", dtype="float32", cache_dir=home / "cache", say=lambda line: None
    )
    shipped = publish.shipped_drafter(kept, True)
    assert pair.drafter is not None
    for name in ("fc", "layers.0.self_attn.k_proj", "layers.0.mlp.down_proj"):
        module = pair.drafter
        for part in name.split("."):
            module = module[int(part)] if part.isdigit() else getattr(module, part)
        dense = module.dense(jnp.dtype(jnp.float32))
        np.testing.assert_array_equal(dense, shipped[f"{name}.weight"].astype(jnp.float32))


def test_a_mask_token_that_texts_hold_is_refused(home):
    used = int(read_answers(home / "answers").tokens[0])
    with pytest.raises(InputError, match=f"token {used} is in the training text"):
        train(home, "--out", str(home / "no"), "--mask-token", str(used))


def test_int4_needs_groups_of_32(home):
    with pytest.raises(InputError, match="48 wide"):
        train(home, "--out", str(home / "no"), "--int4", "--mlp-width", "48")


def test_other_prompts_are_not_mixed_into_answers_that_are_there(home):
    (home / "other.jsonl").write_text('{"kind": "code", "prompt": "x"}')
    with pytest.raises(InputError, match="other flags or data"):
        write(home, home / "other.jsonl", home / "answers")
    (home / "bad.jsonl").write_text('{"prompt": "x"}')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 1"):
        write(home, home / "bad.jsonl", home / "new")
