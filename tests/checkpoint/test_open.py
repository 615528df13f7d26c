import json
import os
import shutil
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jddtree.checkpoint import manifest, open_checkpoint, restore, skeleton, transfer
from jddtree.checkpoint.open import content_key
from jddtree.errors import InputError


def opened(folder, tmp_path, lines=None):
    return open_checkpoint(folder, tmp_path / "cache", (lines if lines is not None else []).append)


def test_a_published_folder_is_converted_once_for_its_content(tmp_path, kimi_folder):
    lines = []
    first = opened(kimi_folder, tmp_path, lines)
    assert len(lines) == 2 and lines[0].startswith(f"Converting {kimi_folder} (") and "once" in lines[0]
    assert "Skipping 9 tensors" in lines[1]
    assert "mm_projector.pre_norm.weight" in (first.weights / manifest.NAME).read_text()
    assert first.folder == kimi_folder and first.config["model_type"] == "kimi_k25"
    assert first.generation_config is None
    lines.clear()

    # A copy elsewhere, with other companions and other times, is the same content.
    copy = tmp_path / "copy"
    shutil.copytree(kimi_folder, copy)
    for file in copy.iterdir():
        os.utime(file, (1, 1))
    (copy / "generation_config.json").write_text('{"eos_token_id": 3}')
    second = opened(copy, tmp_path, lines)
    assert (lines, second.weights, second.folder) == ([], first.weights, copy)
    assert second.generation_config == {"eos_token_id": 3}

    # An edit is another content, although path and size stay.
    file = copy / "model-00003-of-000004.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    third = opened(copy, tmp_path, lines)
    assert len(lines) == 2 and third.weights != first.weights


def test_hashes_are_remembered(tmp_path, kimi_folder, monkeypatch):
    opened(kimi_folder, tmp_path)
    monkeypatch.setattr("hashlib.file_digest", lambda file, kind: pytest.fail("hashed again"))
    opened(kimi_folder, tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_hash_memory_is_made_again(tmp_path, qwen3_folder, content):
    first = opened(qwen3_folder, tmp_path)
    (tmp_path / "cache" / "hashes.json").write_text(content)
    assert opened(qwen3_folder, tmp_path).weights == first.weights


def test_concurrent_runs_share_one_conversion(tmp_path, qwen3_folder, monkeypatch):
    count, results, lines = [], [], []
    to_orbax = transfer.to_orbax
    started = threading.Event()

    def slow(*arguments):
        count.append(1)
        started.set()
        while not any("Waiting" in line for line in lines):
            threading.Event().wait(0.01)
        to_orbax(*arguments)

    monkeypatch.setattr(transfer, "to_orbax", slow)
    threads = [
        threading.Thread(target=lambda: results.append(opened(qwen3_folder, tmp_path, lines)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
        assert started.wait(60)
    for thread in threads:
        thread.join(60)
    assert len(count) == 1 and results[0].weights == results[1].weights


def values(state):
    return {path: np.asarray(leaf) for path, leaf in skeleton.array_paths(state)}


def model(checkpoint):
    return skeleton.abstract_model(checkpoint.config, checkpoint.packed)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_weights_are_restored_in_the_dtype_asked_for(tmp_path, kimi_folder, published_tensors, dtype):
    checkpoint = opened(kimi_folder, tmp_path)
    graph, abstract = nnx.split(model(checkpoint))
    state = restore(checkpoint, abstract, dtype)
    found, stored = values(state), published_tensors(kimi_folder)

    def raw(name, kind):
        _, shape, data = stored["language_model." + name]
        return np.frombuffer(data, kind).reshape(shape)

    bfloat16 = ml_dtypes.bfloat16
    weight = raw("model.layers.1.self_attn.q_a_proj.weight", bfloat16).astype(dtype)
    kv = raw("model.layers.1.self_attn.kv_b_proj.weight", bfloat16).astype(dtype).reshape(8, 32, 32)
    expert = "layers.2.mlp.experts.{}down_proj.weight_{}"
    expected = {
        "layers.1.self_attn.q_a_proj.weight": weight,
        "layers.1.self_attn.k_up": kv[:, :16],
        "layers.1.self_attn.v_up": kv[:, 16:],
        "layers.1.mlp.gate.e_score_correction_bias": raw(
            "model.layers.1.mlp.gate.e_score_correction_bias", np.float32
        ),
        expert.format("", "packed"): np.stack(
            [raw("model." + expert.format(f"{e}.", "packed"), np.int32) for e in range(16)]
        ),
        expert.format("", "scale"): np.stack(
            [raw("model." + expert.format(f"{e}.", "scale"), bfloat16) for e in range(16)]
        ),
    }
    for path, array in expected.items():
        assert found[path].dtype == array.dtype and found[path].tobytes() == array.tobytes(), path
    assert {array.dtype for array in found.values()} == {np.dtype(t) for t in (dtype, "f4", "i4", bfloat16)}
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(nnx.merge(graph, state)))


def test_narrower_weights_are_rounded_to_nearest(tmp_path, qwen3_folder, published_tensors):
    checkpoint = opened(qwen3_folder, tmp_path)
    found = values(restore(checkpoint, model(checkpoint), jnp.bfloat16))
    _, shape, data = published_tensors(qwen3_folder)["model.embed_tokens.weight"]
    expected = jnp.asarray(np.frombuffer(data, np.float32).reshape(shape)).astype(jnp.bfloat16)
    assert found["embed_tokens.weight"].tobytes() == np.asarray(expected).tobytes()


def test_weights_are_restored_to_the_shardings_asked_for(tmp_path, kimi_folder):
    checkpoint = opened(kimi_folder, tmp_path)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    cut = NamedSharding(mesh, PartitionSpec("x"))
    whole = NamedSharding(mesh, PartitionSpec())

    def place(leaf):
        sharding = cut if leaf.shape[0] % 8 == 0 else whole
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    state = restore(checkpoint, jax.tree.map(place, nnx.state(model(checkpoint))), jnp.float32)
    packed = dict(skeleton.array_paths(state))["layers.1.mlp.experts.up_proj.weight_packed"]
    assert packed.sharding == cut and packed.addressable_shards[0].data.shape == (2, 64, 16)
    plain = values(restore(checkpoint, nnx.state(model(checkpoint)), jnp.float32))
    assert all((array == plain[path]).all() for path, array in values(state).items())


def test_another_model_is_refused(tmp_path, kimi_folder, qwen3_folder):
    checkpoint = opened(kimi_folder, tmp_path)
    config = json.loads((kimi_folder / "config.json").read_text())
    text = config["text_config"]

    def refuse(change, packed, message):
        other = skeleton.abstract_model(config | {"text_config": text | change}, packed)
        with pytest.raises(InputError, match=message):
            restore(checkpoint, other, jnp.float32)

    refuse({"num_hidden_layers": 4}, checkpoint.packed, r"no tensor for layers\.3\.")
    refuse(
        {"num_hidden_layers": 2},
        checkpoint.packed,
        r"language_model\.model\.layers\.2\.\S+ \(layers.* no place",
    )
    refuse(
        {"q_lora_rank": 32}, checkpoint.packed, r"q_a_layernorm\.weight gives .*\[48\]; the model needs \[32"
    )
    refuse({}, frozenset(), r"no tensor for layers\.1\.mlp\.experts\.\w+\.weight,")


def test_an_orbax_folder_is_used_as_it_is(tmp_path, qwen3_folder):
    cached = opened(qwen3_folder, tmp_path)
    folder = tmp_path / "orbax"
    shutil.copytree(cached.weights, folder)
    with pytest.raises(InputError, match=r"config\.json does not exist"):
        opened(folder, tmp_path / "other")
    shutil.copyfile(qwen3_folder / "config.json", folder / "config.json")
    checkpoint = opened(folder, tmp_path / "other")
    assert checkpoint.weights == checkpoint.folder == folder
    assert not (tmp_path / "other").exists()
    assert len(values(restore(checkpoint, model(checkpoint), jnp.float32))) == len(cached.plan.arrays)


def test_the_content_of_a_folder_is_known_by_a_hash_in_both_forms(tmp_path, qwen3_folder):
    cache = tmp_path / "cache"
    published = content_key(qwen3_folder, cache)
    converted = open_checkpoint(qwen3_folder, cache, lambda line: None).weights
    assert converted.name == published
    shutil.copyfile(qwen3_folder / "config.json", converted / "config.json")
    before = content_key(converted, cache)
    assert before == content_key(converted, cache) != published
    file = next(file for file in sorted((converted / manifest.WEIGHTS).rglob("*")) if file.is_file())
    file.write_bytes(file.read_bytes() + b" ")
    assert content_key(converted, cache) != before


def test_a_damaged_conversion_is_refused_and_in_the_cache_made_again(tmp_path, qwen3_folder):
    lines = []
    cached = opened(qwen3_folder, tmp_path, lines)
    folder = tmp_path / "orbax"
    shutil.copytree(cached.weights, folder)
    shutil.copyfile(qwen3_folder / "config.json", folder / "config.json")
    for copy in (folder, cached.weights):
        file = max((copy / manifest.WEIGHTS).rglob("*"), key=lambda path: path.stat().st_size)
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="is missing or truncated") as caught:
        opened(folder, tmp_path)
    assert "\n" not in str(caught.value)
    again = opened(qwen3_folder, tmp_path, lines)
    assert again.weights == cached.weights and len(lines) == 2
    assert values(restore(again, model(again), jnp.float32))
    for content in ("{", "{}", '{"version": 2, "entries": [{}], "skipped": [], "files": {}}'):
        (folder / manifest.NAME).write_text(content)
        with pytest.raises(InputError, match=manifest.NAME):
            opened(folder, tmp_path)


def test_a_config_of_another_model_is_refused_before_the_weights(tmp_path, kimi_folder, qwen3_folder):
    cached = opened(kimi_folder, tmp_path)
    folder = tmp_path / "orbax"
    shutil.copytree(cached.weights, folder)
    config = json.loads((kimi_folder / "config.json").read_text())
    text = config["text_config"]

    def put(change):
        (folder / "config.json").write_text(json.dumps(config | {"text_config": text | change}))

    put({"rope_theta": 1e6, "max_position_embeddings": 64})  # how far and how positions reach may be changed
    assert opened(folder, tmp_path).weights == folder
    put({"num_experts_per_tok": text["num_experts_per_tok"] - 1})
    with pytest.raises(InputError, match=r"another model .*experts_per_token is 3, and was 4"):
        opened(folder, tmp_path)
    shutil.copyfile(qwen3_folder / "config.json", folder / "config.json")
    with pytest.raises(InputError, match=r"another model .*of the family dense, not kimi_k2"):
        opened(folder, tmp_path)


def test_the_manifest_knows_where_the_weights_came_from(tmp_path, kimi_folder):
    assert manifest.read_manifest(opened(kimi_folder, tmp_path).weights).revision is None
    commit = "0123456789" * 4
    client, loose = tmp_path / "snapshots" / commit, tmp_path / "loose"
    shutil.copytree(kimi_folder, client)
    shutil.copytree(kimi_folder, loose)
    notes = loose / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    (notes / "config.json.metadata").write_text(f"{commit}\netag\n1.5\n")
    for number, folder in enumerate((client, loose)):
        converted = open_checkpoint(folder, tmp_path / str(number), print)
        found = manifest.read_manifest(converted.weights)
        assert (found.revision, found.config) == (commit, converted.config)


def test_what_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        opened(tmp_path / "nowhere", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is neither a folder nor a GGUF file"):
        opened(tmp_path / "file", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no checkpoint"):
        opened(tmp_path / "empty", tmp_path)
