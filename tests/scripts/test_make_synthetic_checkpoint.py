import json

import pytest

from jddtree.checkpoint import place, published, transfer
from jddtree.config import target_config
from jddtree.errors import InputError
from jddtree.quantization import dequantize
from pallas_kernels.grouped_matmul.api import Int4
from scripts import make_synthetic_checkpoint as script


@pytest.fixture
def config(golden_folders):
    return golden_folders[0] / "kimi" / "int4" / "config.json"


def run(config, out, *more):
    script.main(["--config", str(config), "--out", str(out), *more])
    return published.tensors(out)


def test_it_is_a_published_checkpoint_of_so_many_layers(tmp_path, config, monkeypatch, capsys):
    monkeypatch.setattr(published, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(script, "SHARD_BYTES", 200_000)
    found = run(config, tmp_path / "a", "--layers", "2")
    raw = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (
        raw["text_config"]["num_hidden_layers"] == 2 and len(list((tmp_path / "a").glob("*.safetensors"))) > 2
    )
    plan, _ = transfer.plan_published(
        tmp_path / "a", raw
    )  # fills the model of its config, no more and no less
    assert not plan.skipped and plan.packed
    expert = found["language_model.model.layers.1.mlp.experts.3.down_proj.weight_packed"].read()
    scale = found["language_model.model.layers.1.mlp.experts.3.down_proj.weight_scale"].read()
    plain = (
        found["language_model.model.layers.1.mlp.shared_experts.down_proj.weight"].read().astype("float32")
    )
    for weight in (dequantize(Int4(expert, scale)), plain):  # products keep the size of what they multiply
        assert 0.8 < float(weight.astype("float32").std()) * weight.shape[1] ** 0.5 < 1.3

    digests = {name: tensor.digest() for name, tensor in found.items()}
    again = run(config, tmp_path / "b", "--layers", "3")
    assert all(again[name].digest() == digest for name, digest in digests.items())
    other = run(config, tmp_path / "c", "--layers", "2", "--seed", "1")
    assert sum(other[name].digest() == digest for name, digest in digests.items()) == 48  # weight_shape alone
    assert capsys.readouterr().out.count("\n") == 3


def test_the_tensors_of_k26_are_all_there(config):
    """Count and bytes of the text part of the published INT4 checkpoint (spec kimi, section 4)."""
    sizes = {
        "vocab_size": 163840,
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
    }
    k26 = target_config(json.loads(config.read_text())["text_config"] | sizes)
    tensors = script.layout(k26, "language_model.")
    assert len(tensors) == 208_550 - 335
    assert abs(sum(script._nbytes(*tensor[1:]) for tensor in tensors) - 594.206e9) < 1e6


def test_what_cannot_be_made_is_one_line(tmp_path, config, golden_folders, monkeypatch):
    def refused(match, *more, config=config):
        with pytest.raises(InputError, match=match):
            run(config, tmp_path / "out", *more)
        assert not (tmp_path / "out").exists()

    refused("at least one layer", "--layers", "0")
    qwen3 = golden_folders[0] / "e2e/tiny_a/target/config.json"
    refused("not of the K2 family", "--layers", "1", config=qwen3)
    monkeypatch.setattr(place.shutil, "disk_usage", lambda folder: place.shutil._ntuple_diskusage(10, 5, 5))
    refused("GB free", "--layers", "1")
    monkeypatch.undo()
    run(config, tmp_path / "out", "--layers", "1")
    with pytest.raises(InputError, match="exists already"):
        run(config, tmp_path / "out", "--layers", "1")
