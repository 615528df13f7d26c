"""A drafter for a target that these scripts did not train: its prompts, its answers, INT4, the decoder."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jddtree.checkpoint.skeleton import array_paths
from jddtree.config import DFlashConfig, drafter_config, target_config
from jddtree.errors import InputError
from jddtree.load import load_pair
from scripts import train_drafter, write_answers
from scripts.pair import publish, stages
from scripts.pair.answers import read_answers
from scripts.pair.drafter import init_drafter, target_pass
from scripts.pair.sizes import Shape, drafter_json
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
    # Others may read what is published.
    assert (home / "int4" / "model.safetensors").stat().st_mode & 0o777 == 0o644
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


def published(home: Path, int4: bool) -> tuple[Path, dict[str, jax.Array]]:
    """A published drafter of random weights for the target, and what a reader sees of them."""
    raw = drafter_json(TARGET, target_config(TARGET), Shape(1, 4, (1,), 2, 1, 16, width=32), UNUSED)
    rng = np.random.default_rng(1)
    params = init_drafter(drafter_config(raw), 0)
    params = {name: jnp.asarray(rng.normal(size=v.shape), jnp.float32) for name, v in params.items()}
    folder = home / f"published-{int4}"
    publish.write_drafter(folder, raw, params, int4)
    return folder, publish.shipped_drafter(params, int4)


def test_training_starts_from_a_published_drafter(home, monkeypatch):
    monkeypatch.setattr(stages, "Judge", lambda *_: lambda params: float(params["fc.weight"].sum()))
    folder, seen = published(home, int4=True)
    common = ["--target", str(home / "target"), "--cache-dir", str(home / "cache")]
    common += ["--answers", str(home / "answers"), *SIZES, "--drafter-steps", "1", "--start", str(folder)]
    out = home / "same"
    train_drafter.main([*common, "--drafter-rate", "0", "--int4", "--out", str(out)])
    # No size was given: it is the folder's, tap included.
    assert (out / "config.json").read_text() == (folder / "config.json").read_text()
    pair = load_pair(home / "target", out, dtype="float32", cache_dir=home / "cache", say=lambda line: None)
    for path, leaf in array_paths(pair.drafter):
        # Rounding again may move a scale by a bfloat16 step, and with it every number of its group.
        np.testing.assert_allclose(leaf, seen[path].astype(jnp.float32), rtol=2**-6, atol=0, err_msg=path)
    report = json.loads((out / "training.json").read_text())
    files = report["start"]["files"]
    assert files == {"model.safetensors": sha256((folder / "model.safetensors").read_bytes()).hexdigest()}
    assert report["start"]["drafter"] == report["drafter"]


def draft(home: Path, folder: Path) -> tuple[jax.Array, DFlashConfig]:
    """What the drafter in a folder drafts after six tokens, [1, D, V], and its config."""
    pair = load_pair(
        home / "target", folder, dtype="float32", cache_dir=home / "cache", say=lambda line: None
    )
    assert pair.drafter is not None

    @jax.jit
    def logits(target, drafter) -> jax.Array:
        tokens, positions = jnp.arange(40, 46)[None], jnp.arange(6)[None]
        features = target_pass(target, tokens, positions, drafter.target_layers).features
        cache = drafter.context(features, positions)
        return drafter.draft(target, jnp.array([46]), jnp.array([6]), cache)

    return logits(pair.target, pair.drafter), drafter_config(json.loads((folder / "config.json").read_text()))


def test_a_grown_drafter_drafts_the_same_until_it_is_trained(home, monkeypatch):
    monkeypatch.setattr(stages, "Judge", lambda *_: lambda _: 0.0)
    monkeypatch.setattr(stages, "fit_drafter", lambda *_, start, **__: start)
    folder, _ = published(home, int4=False)
    larger = ["--layers", "2", "--mlp-width", "96", "--heads", "4", "--kv-heads", "2"]
    out = home / "grown"
    train(home, "--out", str(out), "--start", str(folder), *larger, "--taps", "2", "0", "1")
    before, small = draft(home, folder)
    after, large = draft(home, out)
    assert large == replace(
        small,
        num_layers=2,
        windows=(None, None),
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        target_layers=(0, 1, 2),
    )
    np.testing.assert_allclose(after, before, atol=1e-4 * float(jnp.abs(before).max()))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--block", "8"), "its block_size is 4 and not 8: leave out"),
        (("--head-dim", "32"), "its head_dim is 16 and not 32: leave out"),
        (("--mlp-width", "16"), "its intermediate_size is 32 and not 16: leave out"),
        (("--taps", "0", "2"), r"its target_layers is \(1,\) and not \(0, 2\): leave out"),
        (("--heads", "4"), "its 2 heads share 1 kv heads, so 4 cannot share 1"),
    ],
)
def test_what_a_drafter_cannot_grow_into_is_refused(home, flags, message):
    folder, _ = published(home, int4=False)
    with pytest.raises(InputError, match=f"published-False: {message}"):
        train(home, "--out", str(home / "no"), "--start", str(folder), "--taps", "1", *flags)


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
